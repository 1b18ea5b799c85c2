"""The programs of a run, compiled for a slice: the training step and the sweep's forward pass."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from fire_lm import sharding
from fire_lm.attention import compiling_for
from fire_lm.errors import FireLMError, RunFailed, UserError, reason
from fire_lm.evaluation import LengthSweep, compile_scoring, sequences_at_a_time
from fire_lm.hardware.slices import Slice
from fire_lm.preflight import bundles
from fire_lm.preflight.estimate import Estimate, estimate
from fire_lm.preflight.kernels import PREFIX, attention_cycles
from fire_lm.training import Pretraining


class DoesNotFit(FireLMError):
    """The compiler refuses a program for its memory; `needed` and `usable` in bytes."""

    def __init__(self, needed: float, usable: float):
        needs, has, over = (f"{size / 2**30:.2f}" for size in (needed, usable, needed - usable))
        super().__init__(f"it needs {needs} GiB a chip, {has} are usable: {over} too many")
        self.needed, self.usable = needed, usable


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Compiles for a slice; leaves the schedules of the kernels in `folder`, see `bundles.ask`."""

    where: Slice
    folder: Path

    @functools.cached_property
    def devices(self) -> list[Any]:
        return self.where.devices()

    def training(self, run: Pretraining) -> Estimate:
        """The training step."""
        mesh = self.mesh(run.mesh)
        ways = mesh.shape["data"] * mesh.shape["fsdp"] * run.microbatches
        return self._estimate(
            mesh,
            lambda: run.compile(mesh),
            self._attention(run, mesh, run.batch_size // ways, run.train_length),
        )

    def scoring(self, run: LengthSweep, length: int) -> Estimate:
        """The forward pass at `length`."""
        mesh = self.mesh(run.mesh)
        batch = sequences_at_a_time(length, run.tokens_per_batch, mesh)
        return self._estimate(
            mesh,
            lambda: compile_scoring(
                run.model,
                mesh,
                features=run.data.features,
                length=length,
                tokens_per_batch=run.tokens_per_batch,
            ),
            self._attention(run, mesh, batch // (mesh.shape["data"] * mesh.shape["fsdp"]), length),
        )

    def mesh(self, shape: sharding.MeshShape) -> jax.sharding.Mesh:
        """Raises UserError if it does not fit the slice."""
        return sharding.mesh_of(shape.resolve(len(self.devices)), self.devices, str(self.where))

    def _estimate(
        self,
        mesh: jax.sharding.Mesh,
        compile: Callable[[], jax.stages.Compiled],
        kernel_cycles: Callable[[str, Sequence[str]], float],
    ) -> Estimate:
        for path in self.folder.iterdir():
            path.unlink()
        start = time.monotonic()
        try:
            with compiling_for("tpu"):
                compiled = compile()
        except jax.errors.JaxRuntimeError as error:
            told = re.search(
                r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)G\)", str(error)
            )
            if not told:
                raise RunFailed(f"the compiler refuses it: {reason(error)}") from error
            scale = 2.0 ** (10 * " KMGT".index(told[2]))
            raise DoesNotFit(float(told[1]) * scale, float(told[3]) * 2**30) from error
        seconds = time.monotonic() - start
        return estimate(compiled, self.where, list(mesh.devices.flat), seconds, kernel_cycles)

    def _attention(
        self, run: Pretraining | LengthSweep, mesh: jax.sharding.Mesh, batch: int, length: int
    ) -> Callable[[str, Sequence[str]], float]:
        """Cycles of a chip in a kernel: its cores share the heads."""
        model = run.model
        heads = math.ceil(model.size.num_heads / mesh.shape["tensor"] / self.where.chip.cores)
        packed = "segment_ids" in run.data.features

        def cycles(kernel: str, instructions: Sequence[str]) -> float:
            if not kernel.startswith(PREFIX):
                raise UserError(f"no cost is known of the kernel {kernel}")
            which = kernel.removeprefix(PREFIX)
            return heads * max(
                attention_cycles(stretches, which, model, batch, length, packed)
                for stretches in bundles.read_all(self.folder, instructions)
            )

        return cycles
