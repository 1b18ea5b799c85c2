"""A run's model on the devices of all processes: process 0 asks, and all compute together.

What process 0 asks goes through JAX's coordination service as JSON, so that requests need no
collective of a fixed shape, and the harness runs in one process alone.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fire_lm.checkpoints import choose_step, restore_params, split_run
from fire_lm.errors import FireLMError, UserError
from fire_lm.evaluation import lengths_refused
from fire_lm.evaluation.continuation_scores import Row, continuation_scores
from fire_lm.evaluation.scoring import parameter_shapes
from fire_lm.experiment import training_of
from fire_lm.generation import Greedy, Method, Sample
from fire_lm.processes import agreed, by_first
from fire_lm.runs.continuations import Writer
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.run import open_run
from fire_lm.runs.saved import tokenized_of_run
from fire_lm.sharding import MeshShape, decoding_layout, make_mesh


@dataclasses.dataclass(frozen=True)
class Settings:
    """The run to open, as JSON, so that process 0 can send it.

    Attributes:
      run: `RUN` or `RUN@STEP`.
      bindings: of gin, which change the model at evaluation, such as `RoPE.scaling=@YaRN()`.
    """

    run: str
    bindings: Sequence[str] = ()


class Engine:
    """The model of a run.

    Attributes:
      name: the run, its step, and the change at evaluation, if there is one.
      train_length: tokens of its rows in training.
    """

    def __init__(self, settings: Settings):
        opened = open_run(settings.run)
        arguments = argparse.Namespace(
            gin_file=[], bindings=list(settings.bindings), gin_search_paths="", imports=[]
        )
        config, variant = configuration(arguments, opened.workdir)
        self.data = tokenized_of_run(config, opened.workdir)
        self.model = config.call("build_decoder")
        self.train_length: int = training_of(config).train_length
        self.mesh = make_mesh(MeshShape())
        step = by_first(lambda: choose_step(opened.workdir, opened.step))
        like = decoding_layout(parameter_shapes(self.model), self.mesh)
        self._params, _ = restore_params(split_run(settings.run)[0], step, like)
        self.name = f"{opened.name}@{step}" + f" ({variant})" * bool(variant)

    def check_length(self, length: int) -> None:
        """Raise UserError if the model cannot read inputs of this many tokens."""
        if told := lengths_refused(self.model, [length]):
            raise UserError(f"max_length={length}: {told[length]}")

    def scores(self, rows: Sequence[Row]) -> Iterator[tuple[int, float, bool]]:
        """See `continuation_scores`."""
        return continuation_scores(self.model, self._params, rows, self.mesh)

    def texts(
        self,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[int],
        new_tokens: int,
        stop: Sequence[str],
        sampling: dict[str, Any],
    ) -> list[str]:
        """Generate continuations of prompts of ids, greedily without `sampling`."""
        method: Method = Sample(**sampling) if sampling else Greedy()
        writer = Writer(
            *(self.model, self._params, self.data, new_tokens, method, tuple(stop)), mesh=self.mesh
        )
        ids = [np.asarray(prompt, np.int32) for prompt in prompts]
        context = max(map(len, ids)) + new_tokens
        return [found[0].text for found in writer.continue_prompts(ids, numbers, context)]


class Leader:
    """The engine as process 0 has it: whatever is asked of it, the others do as well."""

    def __init__(self, settings: Settings):
        agreed(["open", dataclasses.asdict(settings)])
        self.engine = Engine(settings)

    def scores(self, rows: Sequence[Row]) -> Iterator[tuple[int, float, bool]]:
        agreed(["scores", [rows]])
        return self.engine.scores(rows)

    def texts(self, *asked: Any) -> list[str]:
        agreed(["texts", asked])
        return self.engine.texts(*asked)


def follow() -> None:
    """Compute what process 0 asks for, until it is done; it reports what goes wrong."""
    engine: Engine | None = None
    while (asked := agreed(None)) is not None:
        what, arguments = asked
        try:
            if what == "open":
                engine = Engine(Settings(**arguments))
            elif engine is not None and what == "scores":
                list(engine.scores(*arguments))
            elif engine is not None:
                engine.texts(*arguments)
        except FireLMError:
            continue


def dismiss() -> None:
    """End the others' `follow`."""
    if jax.process_count() > 1:
        agreed(None)
