"""What is asked before a run starts, and the parameters that it may start from."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath

from fire_lm import data as data_layer
from fire_lm.checkpoints import candidates, check_params, choose_step, restore_params, split_run
from fire_lm.data import Data
from fire_lm.errors import RunFailed, UserError
from fire_lm.models import Decoder, encoding_names
from fire_lm.storage import make_folder, remove, replace_text, require_bucket
from fire_lm.training.optimizer import POSITION
from fire_lm.training.step import TrainState


def start_from(
    state: TrainState,
    init_from: str,
    allow_missing: tuple[str, ...],
    allow_unused: tuple[str, ...],
    model: Decoder,
    source: Decoder | None,
) -> TrainState:
    """`state` with the parameters of another run, whose model is `source`.

    Fresh where that run lacks allowed leaves. Parameters of another encoding are never taken over,
    even if they go by the same names.
    """
    run, asked = split_run(init_from)
    step = choose_step(run, asked)
    with _comparing(run, model, source) as foreign:
        params, missing = restore_params(
            run,
            step,
            state.params,
            allow_missing=allow_missing,
            allow_unused=allow_unused,
            foreign=foreign,
        )
    if jax.process_index() == 0:
        fresh = f"; fresh, as it lacks them: {', '.join(missing)}" if missing else ""
        print(f"parameters of {run}@{step}{fresh}", end=" ... ")
    return TrainState(state.step, params, state.opt_state)


def check_start(
    params: Any,
    init_from: str,
    allow_missing: tuple[str, ...],
    allow_unused: tuple[str, ...],
    model: Decoder,
    source: Decoder,
) -> tuple[int, list[str]]:
    """Refuses what `start_from` would for its names and shapes, and reads no array.

    Returns:
      The checkpoint that it would read if it is whole, and what that lacks.
    """
    run, asked = split_run(init_from)
    step = candidates(run, asked)[0]
    with _comparing(run, model, source) as foreign:
        _, missing = check_params(
            run,
            step,
            params,
            allow_missing=allow_missing,
            allow_unused=allow_unused,
            foreign=foreign,
        )
    return step, missing


@contextlib.contextmanager
def _comparing(run: str, model: Decoder, source: Decoder | None) -> Iterator[Callable[[str], bool]]:
    """Which parameters of `run` mean something else here; names both encodings in errors."""
    ours, theirs = encoding_names(model), encoding_names(source or model)
    if source is not None and len(source.encodings) != len(model.encodings):
        raise UserError(
            f"INIT_FROM: {run} has {theirs}, this run {ours}: layers that take turns are stored "
            "by turn\ngive both as many turns, as in POSITION = [@RoPE, @RoPE] for one encoding"
        )
    try:
        yield lambda path: ours != theirs and bool(POSITION.search(path))
    except UserError as error:
        if ours == theirs:
            raise
        raise UserError(f"INIT_FROM: {run} has {theirs}, this run {ours}: {error}") from error


def check_positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise UserError(f"{name} is {value}: it must be 1 or more")
        if value >= 2**31:  # steps and tokens of a row are counted in int32
            raise UserError(f"{name} is {value}: it must be less than {2**31}")


def check_settings(
    *,
    train_steps: int,
    batch_size: int,
    train_length: int,
    microbatches: int,
    log_every: int,
    seed: int,
    z_loss: float,
) -> None:
    """Refuses numbers that no run can have."""
    check_positive(
        train_steps=train_steps,
        batch_size=batch_size,
        train_length=train_length,
        microbatches=microbatches,
        log_every=log_every,
    )
    if train_length < 2:  # the first token predicts the second
        raise UserError(f"TRAIN_LENGTH is {train_length}: it must be 2 or more")
    if not 0 <= seed < 2**32:  # of more, jax.random.key takes the lower bits
        raise UserError(f"SEED is {seed}: it must be 0 or more, and less than {2**32}")
    if not 0 <= z_loss < math.inf:
        raise UserError(f"z_loss is {z_loss}: it must be 0 or more")


def check_reach(model: Decoder, train_length: int) -> None:
    """Refuses a length that the encodings do not reach, such as that of a longer run that keeps the
    table of positions of the run it starts from."""
    for encoding in model.encodings:
        encoding.check_length(model.resampling.largest(train_length), train_length)


def ensure_writable(folder: str | epath.Path, flag: str = "--workdir") -> None:
    """Fails before the work starts rather than at the first checkpoint; makes the folder."""
    require_bucket(folder, flag)
    probe = epath.Path(folder) / f".writable_{jax.process_index()}_{os.getpid()}"
    try:
        make_folder(folder)
        replace_text(probe, "")
        remove(probe)  # one of the same name, on another machine, may have been faster
    except (OSError, RunFailed) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot write to {flag} {folder}: {told}") from error


def check_vocabulary(data: Data, vocab_size: int) -> None:
    """Every id that the vocabulary emits needs a row of the embedding."""
    needed = data_layer.vocabulary_size(data)
    if needed > vocab_size:
        raise UserError(
            f"vocabulary '{data.vocabulary_name()}' has {needed} ids, the model {vocab_size} rows: "
            f"set --gin.VOCAB_SIZE to {needed} or more"
        )
