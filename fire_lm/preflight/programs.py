"""Compilation of a run's programs for a slice: training, scoring, generation and ranking."""

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
import numpy as np

from fire_lm import sharding
from fire_lm.attention import compiling_for
from fire_lm.attention.tpu import sublane_copies
from fire_lm.attention.tpu.schedule import PREFIX, choose_blocks
from fire_lm.errors import FireLMError, RunFailed, UserError, reason
from fire_lm.generation import Method
from fire_lm.generation.generate import check_context
from fire_lm.generation.programs import (
    abstract_inputs,
    cache_bytes,
    call_for,
    compiled_context,
    continue_prompts,
    ways,
)
from fire_lm.generation.sampling import TOKENS
from fire_lm.hardware.slices import Slice
from fire_lm.measures import LengthSweep, compile_scoring, sequences_at_a_time
from fire_lm.measures.continuation_scores import compile_scores, padded_width
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.preflight import bundles
from fire_lm.preflight.estimate import Estimate, Generation, costs, estimate
from fire_lm.preflight.kernels import attention_cycles, copies_cycles
from fire_lm.training import Pretraining

# An arbitrary stop token, so that the program includes the test for stop tokens.
_STOP = (1,)


class DoesNotFit(FireLMError):
    """The error for a program that needs more memory, in bytes, than is usable on a chip."""

    def __init__(self, needed: float, usable: float):
        needs, has, over = (f"{size / 2**30:.2f}" for size in (needed, usable, needed - usable))
        super().__init__(
            f"it needs {needs} GiB per chip, {over} GiB more than the usable {has} GiB"
        )


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The generation to compile: `batch` prompts of `length` tokens, continued together.

    Attributes:
      context_length: The number of tokens in a prompt and its continuation without padding; None if
        prompts are not padded.
    """

    batch: int
    length: int
    new_tokens: int
    method: Method
    context_length: int | None = None

    def __str__(self) -> str:
        return f"{self.batch} x ({self.length} + {self.new_tokens}), {self.method.label}"


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A compiler for a slice; kernel schedules are in `folder` (`bundles.dump_schedules_to`)."""

    where: Slice
    folder: Path

    @functools.cached_property
    def devices(self) -> list[Any]:
        return self.where.devices()

    def training(self, run: Pretraining) -> Estimate:
        """Compile the training step of `run`, and estimate its cost."""
        mesh = self.mesh(run.mesh)
        batch = run.batch_size // (ways(mesh) * run.microbatches)
        return self._estimate(
            mesh,
            lambda: run.compile(mesh),
            self._attention(run.model, mesh, batch, run.train_length, run.data.packed),
        )

    def scoring(self, run: LengthSweep, length: int) -> Estimate:
        """Compile the forward pass of a sweep at `length`, and estimate its cost."""
        mesh = self.mesh(run.mesh)
        batch = sequences_at_a_time(length, run.tokens_per_batch, mesh) // ways(mesh)
        return self._estimate(
            mesh,
            lambda: compile_scoring(
                run.model,
                mesh,
                packed=run.data.packed,
                length=length,
                tokens_per_batch=run.tokens_per_batch,
            ),
            self._attention(run.model, mesh, batch, length, run.data.packed),
        )

    def generation(self, model: Decoder, shape: sharding.MeshShape, prompts: Prompts) -> Generation:
        """Compile generation with `model`, and estimate its cost.

        The parameters are not sharded over fsdp.

        Raises:
          UserError: The model cannot read a prompt and its continuation of this length.
        """
        mesh = self.mesh(shape)
        length, new_tokens = prompts.length, prompts.new_tokens
        padded = length + new_tokens
        context = padded if prompts.context_length is None else prompts.context_length
        check_context(model, context, context)
        static = compiled_context(model, context, padded)
        call = call_for(model, prompts.method, new_tokens, _STOP, static, mesh)
        params = sharding.decoding_layout(parameter_shapes(model), mesh)
        inputs = abstract_inputs(model, prompts.batch, length, new_tokens, context, mesh)
        text = ""

        def compile() -> jax.stages.Compiled:
            nonlocal text
            compiled = continue_prompts.lower(call, params, inputs).compile()
            text = compiled.as_text() or ""
            return compiled

        batch = inputs.lengths_B.shape[0] // ways(mesh)
        cycles = self._attention(model, mesh, batch, length)
        return Generation(
            prompts=str(prompts),
            program=self._estimate(mesh, compile, cycles),
            token=costs(text, self.where, list(mesh.devices.flat), cycles, loop=TOKENS),
            cache=cache_bytes(call, params, inputs, mesh),
            parameters=np.dtype(model.dtype).itemsize
            * sum(math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(params)),
        )

    def ranking(
        self, model: Decoder, shape: sharding.MeshShape, tokens: int, tokens_per_batch: int
    ) -> Estimate:
        """Compile the scoring of answers, and estimate its cost.

        `tokens` is the number of tokens in an answer together with its prompt. `tokens_per_batch`
        is the maximum number of tokens in a forward pass.
        """
        mesh = self.mesh(shape)
        width = padded_width(model, tokens)
        batch = sequences_at_a_time(width, tokens_per_batch, mesh) // ways(mesh)
        params = sharding.decoding_layout(parameter_shapes(model), mesh)
        return self._estimate(
            mesh,
            lambda: compile_scores(model, params, tokens, mesh, tokens_per_batch),
            self._attention(model, mesh, batch, width, padded=True),
        )

    def mesh(self, shape: sharding.MeshShape) -> jax.sharding.Mesh:
        """Return a mesh of this shape over all devices of the slice.

        Raises:
          UserError: The mesh does not fit the slice.
        """
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
            match = re.search(
                r"\(([\d.]+)([KMGT])\) exceeds available HBM \(([\d.]+)G\)", str(error)
            )
            if not match:
                raise RunFailed(f"the compiler rejects the program: {reason(error)}") from error
            scale = 2.0 ** (10 * " KMGT".index(match[2]))
            raise DoesNotFit(float(match[1]) * scale, float(match[3]) * 2**30) from error
        seconds = time.monotonic() - start
        return estimate(compiled, self.where, list(mesh.devices.flat), seconds, kernel_cycles)

    def _attention(
        self,
        model: Decoder,
        mesh: jax.sharding.Mesh,
        batch: int,
        length: int,
        packed: bool = False,
        padded: bool = False,
    ) -> Callable[[str, Sequence[str]], float]:
        """Return a function that computes the cycles of a kernel on a chip.

        The cores of a chip share its heads.
        """
        padded = padded or any(turn.mixer.cuts_rows(length) for turn in model.turns)
        slices = sharding.slices_of_rows(mesh)
        heads = math.ceil(model.size.num_heads / mesh.shape["tensor"] / self.where.chip.cores)

        def cycles(kernel: str, instructions: Sequence[str]) -> float:
            if kernel.startswith(sublane_copies.PREFIX):
                dtype = np.dtype(model.dtype)
                # Only the padded length matters here, which depends on neither window nor decays.
                blocks = choose_blocks(length, batch, model.size.head_dim, dtype, None)
                schedules = bundles.schedules_of(self.folder, instructions)
                return max(copies_cycles(stretches, heads, blocks) for stretches in schedules)
            if not kernel.startswith(PREFIX):
                raise UserError(f"the cost of the kernel {kernel} is unknown")
            which = kernel.removeprefix(PREFIX)
            return heads * max(
                attention_cycles(stretches, which, model, batch, length, packed, padded, slices)
                for stretches in bundles.schedules_of(self.folder, instructions)
            )

        return cycles
