"""A search, by repeated compilation, for the nearest setting with which a program fits."""

from __future__ import annotations

import dataclasses

from fire_lm.console import phase
from fire_lm.evaluation import LengthSweep, sequences_at_a_time
from fire_lm.preflight.programs import Compiler, DoesNotFit, Prompts
from fire_lm.training import Pretraining

MORE = "split the state over more fsdp or tensor, or use more chips"


def training(compiler: Compiler, train: Pretraining) -> str:
    """Describe the smallest number of microbatches with which the step fits.

    Microbatches do not change results. If no number suffices, the function reports whether the step
    fits when the backward pass recomputes every layer.
    """
    mesh = compiler.mesh(train.mesh)
    sequences = train.batch_size // (mesh.shape["data"] * mesh.shape["fsdp"])
    for parts in range(train.microbatches + 1, sequences + 1):
        if sequences % parts == 0 and (memory := _memory(compiler, train, parts)):
            return f"with --gin.pretrain.microbatches={parts} it fits: {gib(memory)}"
    told = "no number of microbatches makes it fit"
    if train.model.remat == "full":
        return f"{told}: {MORE}"
    again = dataclasses.replace(train, model=train.model.clone(remat="full"))
    if memory := _memory(compiler, again, sequences, " and remat"):
        settings = f"--gin.build_decoder.remat=full --gin.pretrain.microbatches={sequences}"
        return f"with {settings} it fits: {gib(memory)}"
    return f"{told}, nor does --gin.build_decoder.remat=full with the most of them: {MORE}"


def _memory(compiler: Compiler, train: Pretraining, parts: int, more: str = "") -> float | None:
    """Return the memory of the step with `parts` microbatches, or None if it does not fit."""
    try:
        with phase(f"trying {parts} microbatches{more}", quiet=False):
            return compiler.training(dataclasses.replace(train, microbatches=parts)).memory
    except DoesNotFit:
        print("too large")
        return None


def scoring(compiler: Compiler, score: LengthSweep, length: int) -> str:
    """Describe the number of sequences at a time with which the forward pass fits.

    The number is found by repeated halving.
    """
    mesh = compiler.mesh(score.mesh)
    batch = sequences_at_a_time(length, score.tokens_per_batch, mesh)
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    each = batch // ways // 2
    while each:
        tokens = each * ways * length
        try:
            with phase(f"trying {tokens} tokens at a time", quiet=False):
                found = compiler.scoring(
                    dataclasses.replace(score, tokens_per_batch=tokens), length
                )
        except DoesNotFit:
            print("too large")
            each //= 2
            continue
        return f"with --gin.length_sweep.tokens_per_batch={tokens} it fits: {gib(found.memory)}"
    return "a chip cannot hold a single sequence: lower EVAL_LENGTHS, or split over more tensor"


def generation(compiler: Compiler, run: LengthSweep | Pretraining, prompts: Prompts) -> str:
    """Describe the number of prompts at a time with which generation fits.

    The number is found by repeated halving.
    """
    batch = prompts.batch // 2
    while batch:
        fewer = dataclasses.replace(prompts, batch=batch)
        try:
            with phase(f"trying {fewer}", quiet=False):
                found = compiler.generation(run, fewer).program
        except DoesNotFit:
            print("too large")
            batch //= 2
            continue
        return f"with a batch of {batch} it fits: {gib(found.memory)}"
    return "a chip cannot hold a single prompt: shorten it, or use fewer beams or samples"


def gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"
