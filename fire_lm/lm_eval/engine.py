"""A run's model on the devices of all processes, which compute the requests of process 0.

Process 0 is the only process that runs the harness. It sends requests as JSON through JAX's
coordination service, because a collective operation would require fixed shapes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fire_lm.checkpoints import choose_step, restore_params, split_run
from fire_lm.errors import FireLMError, UserError
from fire_lm.generation import Greedy, Method, Sample
from fire_lm.generation.continuations import Writer
from fire_lm.measures import lengths_refused
from fire_lm.measures.continuation_scores import Row, continuation_scores
from fire_lm.models import parameter_shapes
from fire_lm.processes import agreed, by_first, failing_together
from fire_lm.runs.run import open_run
from fire_lm.runs.saved import tokenized_of_run
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.sharding import MeshShape, decoding_layout, make_mesh


class Engine:
    """The model of `RUN` or `RUN@STEP`, restored from a checkpoint onto the devices.

    `bindings` change the model at evaluation, such as `RoPE.scaling=@YaRN()` in gin.

    Attributes:
      data: The data with the vocabulary of the run.
      train_length: The longest training length in tokens.
      name: The run, its step and, if the bindings change the model, a label for the change.
    """

    def __init__(self, run: str, bindings: Sequence[str] = ()):
        # An error of one process must not leave the others in the exchange of `by_first`.
        with failing_together():
            opened = open_run(run)
            arguments = argparse.Namespace(
                verb="lm_eval",
                gin_file=[],
                bindings=list(bindings),
                gin_search_paths="",
                imports=[],
            )
            experiment, variant = experiment_at_evaluation(arguments, opened.workdir)
            self.data = tokenized_of_run(experiment, opened.workdir)
            self.model = experiment.model
            self.train_length: int = experiment.train.trained_length
        self.mesh = make_mesh(MeshShape())
        step = by_first(lambda: choose_step(opened.workdir, opened.step))
        like = decoding_layout(parameter_shapes(self.model), self.mesh)
        with failing_together():
            self._params, _ = restore_params(split_run(run)[0], step, like)
        self.name = f"{opened.name}@{step}" + f" ({variant})" * bool(variant)

    def check_length(self, length: int) -> None:
        """Raise UserError if the model cannot read inputs of `length` tokens."""
        if reasons := lengths_refused(self.model, [length]):
            raise UserError(f"max_length={length}: {reasons[length]}")

    def scores(self, rows: Sequence[Row]) -> Iterator[tuple[int, float, bool]]:
        """Score continuations; see `continuation_scores`."""
        return continuation_scores(self.model, self._params, rows, self.mesh)

    def texts(
        self,
        prompts: Sequence[Sequence[int]],
        numbers: Sequence[int],
        new_tokens: int,
        stop: Sequence[str],
        sampling: dict[str, Any],
        context_length: int,
    ) -> list[str]:
        """Return the text of a generated continuation of each prompt.

        Args:
          numbers: The numbers of the prompts, from which the keys for sampling are derived.
          new_tokens: The maximum number of generated tokens.
          stop: Strings that end a continuation.
          sampling: The settings of `Sample`, or {} for greedy decoding.
          context_length: The number of tokens in an input, for encodings and positions that depend
            on it. It is fixed, so that a text depends neither on the other prompts nor on batches.
        """
        method: Method = Sample(**sampling) if sampling else Greedy()
        writer = Writer(
            self.model, self._params, self.data, new_tokens, method, tuple(stop), mesh=self.mesh
        )
        ids = [np.asarray(prompt, np.int32) for prompt in prompts]
        by_prompt = writer.continue_prompts(ids, numbers, context_length)
        return [continuations[0].text for continuations in by_prompt]


class Leader:
    """The engine of process 0, which sends each request to the other processes."""

    def __init__(self, run: str, bindings: Sequence[str] = ()):
        agreed(["open", [run, bindings]])
        self.engine = Engine(run, bindings)

    def scores(self, rows: Sequence[Row]) -> Iterator[tuple[int, float, bool]]:
        agreed(["scores", [rows]])
        return self.engine.scores(rows)

    def texts(self, *arguments: Any) -> list[str]:
        agreed(["texts", arguments])
        return self.engine.texts(*arguments)


def follow() -> None:
    """Compute the requests of process 0 until it calls `dismiss`.

    Errors are ignored here, because process 0 reports them.
    """
    engine: Engine | None = None
    while (request := agreed(None)) is not None:
        what, arguments = request
        try:
            if what == "open":
                engine = Engine(*arguments)
            elif engine is not None:
                list(getattr(engine, what)(*arguments))  # scores are computed as they are read
        except FireLMError:
            continue


def dismiss() -> None:
    """End `follow` in the other processes."""
    if jax.process_count() > 1:
        agreed(None)
