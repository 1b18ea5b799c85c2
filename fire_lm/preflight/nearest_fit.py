"""A search, by repeated compilation, for the nearest setting at which a program fits in memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from jax.sharding import Mesh

from fire_lm.console import phase
from fire_lm.measures import LengthSweep, sequences_at_a_time
from fire_lm.measures.continuation_scores import padded_width
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.models import Decoder
from fire_lm.preflight.estimate import Estimate
from fire_lm.preflight.programs import Compiler, DoesNotFit, Prompts
from fire_lm.sharding import MeshShape
from fire_lm.training import Pretraining

MORE = "raise MeshShape.fsdp, MeshShape.tensor or MeshShape.sequence, or use more chips"


def training(compiler: Compiler, train: Pretraining, fewest: int) -> str:
    """Describe the smallest larger number of microbatches at which the step fits in memory.

    Apart from rounding and dropout masks, microbatches do not change results. If no number
    suffices, the description says whether the step fits when the backward pass recomputes every
    layer or, if it does not, what else to change.

    `fewest` is the number of sequences in a batch of the run's longest rows, which microbatches
    must divide as well.
    """
    mesh = compiler.mesh(train.mesh)
    sequences = fewest // (mesh.shape["data"] * mesh.shape["fsdp"])

    def memory_with(train: Pretraining, parts: int, more: str = "") -> float | None:
        run = dataclasses.replace(train, microbatches=parts)
        return _memory(f"{parts} microbatches{more}", functools.partial(compiler.training, run))

    for parts in range(train.microbatches + 1, sequences + 1):
        if sequences % parts == 0 and (memory := memory_with(train, parts)):
            return f"it fits with --gin.{train.configurable}.microbatches={parts}: {gib(memory)}"
    nothing_fits = "no number of microbatches makes it fit"
    if train.model.remat == "full":
        return f"{nothing_fits}: {MORE}"
    again = dataclasses.replace(train, model=train.model.clone(remat="full"))
    if memory := memory_with(again, sequences, " and remat"):
        microbatches = f"--gin.{train.configurable}.microbatches={sequences}"
        settings = f"--gin.build_decoder.remat=full {microbatches}"
        return f"it fits with {settings}: {gib(memory)}"
    return f"{nothing_fits}, not even with --gin.build_decoder.remat=full: {MORE}"


def _memory(what: str, compile: Callable[[], Estimate]) -> float | None:
    """Return the memory of a program, which `what` describes, or None if it does not fit."""
    try:
        with phase(f"trying {what}", quiet=False):
            return compile().memory
    except DoesNotFit:
        print("too large")
        return None


def _halves(count: int) -> Iterator[int]:
    while count := count // 2:
        yield count


def scoring(compiler: Compiler, score: LengthSweep, length: int) -> str:
    """Describe a smaller `tokens_per_batch` at which the forward pass at `length` fits in memory.

    The value is found by repeated halving. If not even one sequence for each device fits, the
    description says what else to change.
    """

    def compile(tokens: int) -> Estimate:
        return compiler.scoring(dataclasses.replace(score, tokens_per_batch=tokens), length)

    mesh, setting = compiler.mesh(score.mesh), "length_sweep.tokens_per_batch"
    return _tokens_at_a_time(compile, mesh, length, score.tokens_per_batch, setting)


def ranking(compiler: Compiler, model: Decoder, evaluation: TextEvaluation, tokens: int) -> str:
    """Describe a smaller `tokens_per_batch` at which the scoring of answers fits in memory.

    See `scoring`.
    """

    def compile(tokens_per_batch: int) -> Estimate:
        return compiler.ranking(model, evaluation.mesh, tokens, tokens_per_batch)

    mesh, width = compiler.mesh(evaluation.mesh), padded_width(model, tokens)
    setting = "evaluate.tokens_per_batch"
    return _tokens_at_a_time(compile, mesh, width, evaluation.tokens_per_batch, setting)


def _tokens_at_a_time(
    compile: Callable[[int], Estimate], mesh: Mesh, length: int, most: int, setting: str
) -> str:
    batch = sequences_at_a_time(length, most, mesh)
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    for each in _halves(batch // ways):
        tokens = each * ways * length
        if memory := _memory(f"{tokens} tokens at a time", functools.partial(compile, tokens)):
            return f"it fits with --gin.{setting}={tokens}: {gib(memory)}"
    return "a single sequence does not fit: lower EVAL_LENGTHS, or raise MeshShape.sequence"


def generation(
    compiler: Compiler, model: Decoder, shape: MeshShape, prompts: Prompts, setting: str
) -> str:
    """Describe a smaller batch size at which generation fits in memory.

    The batch size is found by repeated halving. In the description, it follows `setting`. If not
    even a single prompt fits, the description says what else to change.
    """

    def compile(fewer: Prompts) -> Estimate:
        return compiler.generation(model, shape, fewer).program

    for batch in _halves(prompts.batch):
        fewer = dataclasses.replace(prompts, batch=batch)
        if memory := _memory(str(fewer), functools.partial(compile, fewer)):
            return f"it fits with {setting}{batch}: {gib(memory)}"
    return "even a single prompt does not fit: shorten it, or use fewer beams or samples"


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
