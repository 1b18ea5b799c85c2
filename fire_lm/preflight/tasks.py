"""Checks of an evaluation on downstream tasks before TPUs are reserved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from fire_lm.generation.continuations import width
from fire_lm.hardware.slices import compiler_name
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.models import Decoder
from fire_lm.preflight import nearest_fit
from fire_lm.preflight.check import Programs, check_token, checked
from fire_lm.preflight.estimate import Generation
from fire_lm.preflight.programs import Compiler, Prompts
from fire_lm.preflight.report import SKIPPED, Check, Report

# The number of examples of each task that are read and checked.
_EXAMPLES = 8


def preflight_tasks(
    compiler: Compiler,
    model: Decoder,
    evaluation: TextEvaluation,
    lengths: Sequence[int],
    saved: Mapping[str, Callable[[], str]],
) -> Report:
    """Compile the programs that answer the examples of a task: generation, or ranking.

    The checks that take only seconds run first.

    Args:
      lengths: The lengths of inputs to compile, in ascending order.
      saved: See `check.preflight`.

    Raises:
      UserError: A setting cannot work on this slice.
    """
    mesh, libtpu = compiler.mesh(evaluation.mesh), compiler_name()
    checks = [checked("task", lambda: first_examples(evaluation, model, max(lengths)))]
    checks += [checked(name, check) for name, check in saved.items()]
    if not saved:
        checks.append(Check("run", SKIPPED, "none given: add --workdir=RUN to check it"))
    programs = Programs(compiler)
    generation: Generation | None = None
    for length in lengths:
        if evaluation.rank:
            tokens = length + evaluation.data.target_length
            programs.add(
                f"ranking at {length}",
                functools.partial(
                    compiler.ranking, model, evaluation.mesh, tokens, evaluation.tokens_per_batch
                ),
                functools.partial(nearest_fit.ranking, compiler, model, evaluation, tokens),
            )
            continue
        last = programs.add_generation(
            f"generation at {length}",
            model,
            evaluation.mesh,
            # The inputs have the full `length` tokens, padded as in an evaluation.
            Prompts(
                evaluation.batch_size,
                width(1 + length),
                evaluation.data.target_length,
                evaluation.method,
                evaluation.context_length(length),
            ),
            "--gin.evaluate.batch_size=",
        )
        generation = last or generation
    if generation is not None:
        checks.append(check_token(generation))
    return Report(
        where=compiler.where,
        mesh=dict(mesh.shape),
        programs=programs.estimates,
        flops=0.0,
        tokens=0,
        failures=programs.failures,
        checks=checks,
        compiler=libtpu,
        generation=generation,
    )


def first_examples(evaluation: TextEvaluation, model: Decoder, longest: int) -> str:
    """Check that the model can answer the first examples of each task, and describe them."""
    tasks = evaluation.data.task_examples(
        split=evaluation.split, longest=longest - 1, count=_EXAMPLES
    )
    for task in tasks:
        evaluation.check_task(task, model)
    names = ", ".join(task.name for task in tasks)
    return (
        f"{names}: first examples of the {evaluation.split} split, decoding {evaluation.decoding}"
    )
