"""Checks before a run starts, and initialisation from the parameters of another run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import jax
from etils import epath

from fire_lm.checkpoints import (
    Allowed,
    candidates,
    check_params,
    choose_step,
    restore_params,
    split_run,
)
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.models import Decoder, encoding_names, same_meaning
from fire_lm.processes import by_first
from fire_lm.sharding import POSITION
from fire_lm.storage import Denied, make_folder, remove, replace_text, require_bucket
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.step import TrainState


def start_from(state: TrainState, run: Pretraining, source: Decoder | None) -> TrainState:
    """Return `state` with the evaluated parameters of the checkpoint in `run.init_from`.

    The optimizer's state is that of an optimizer which starts from these parameters: an average or
    the sequence z of schedule-free optimizers begins with them.

    `source` is the model of the run that saved the checkpoint; if it is None, its encoding is taken
    to be that of `run.model`. Parameters that the checkpoint is allowed to lack keep their initial
    values. Parameters of another encoding are never copied, even if they have the same names.

    Raises:
      UserError: The checkpoint does not exist, or its parameters do not fit the model.
      RunFailed: The checkpoint is damaged or cannot be read.
    """
    workdir, requested_step = split_run(run.init_from)
    # A checkpoint may be completed or removed between the listings of two processes.
    step = by_first(lambda: choose_step(workdir, requested_step))
    with _comparing(workdir, run, source) as allowed:
        params, missing = restore_params(workdir, step, state.params, allowed)
    if jax.process_index() == 0:
        fresh = f"; newly initialised: {', '.join(missing)}" if missing else ""
        print(f"parameters of {workdir}@{step}{fresh}", end=" ... ")
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
    initialise = jax.jit(
        lambda old, params: run.transformation().init(params),
        out_shardings=shardings,
        donate_argnums=0,
        keep_unused=True,  # so that the new state can use the memory of the old one
    )
    return TrainState(state.step, params, initialise(state.opt_state, params))


def check_start(run: Pretraining, source: Decoder) -> tuple[int, list[str]]:
    """Raise the errors in names and shapes that `start_from` would raise, without reading arrays.

    Returns:
      The step of the checkpoint that `start_from` would read if this checkpoint is intact, and the
      names of the parameters that the checkpoint lacks.
    """
    workdir, requested_step = split_run(run.init_from)
    step = candidates(workdir, requested_step)[0]
    with _comparing(workdir, run, source) as allowed:
        _, missing = check_params(workdir, step, run.abstract_state().params, allowed)
    return step, missing


@contextlib.contextmanager
def _comparing(workdir: str, run: Pretraining, source: Decoder | None) -> Iterator[Allowed]:
    """Yield what may differ; parameters of an encoding other than the model's are foreign.

    If the encodings differ, the message of a UserError raised in the block mentions both of them.
    """
    model = run.model
    ours, theirs = encoding_names(model), encoding_names(source or model)
    if source is not None and len(source.encodings) != len(model.encodings):
        raise UserError(
            f"INIT_FROM: {workdir} has {theirs}, but this run has {ours}: the number of "
            "alternating encodings must be the same\nto match it, list an encoding several times, "
            "as in POSITION = [@RoPE, @RoPE]"
        )
    try:
        same = same_meaning(model, source or model)
        yield Allowed(
            run.init_allow_missing,
            run.init_allow_unused,
            foreign=lambda path: not same and bool(POSITION.search(path)),
            configurable=run.configurable,
        )
    except UserError as error:
        if ours == theirs:
            raise
        raise UserError(
            f"INIT_FROM: {workdir} has {theirs}, but this run has {ours}: {error}"
        ) from error


def ensure_writable(folder: str | epath.Path, flag: str = "--workdir") -> None:
    """Create a folder and check, before the work starts, that the folder is writable.

    Raises:
      UserError: The folder cannot be created or written. The message mentions `flag`.
      RunFailed: The request to the bucket fails for another reason than a lack of permission, so
        that a restart may succeed.
    """
    require_bucket(folder, flag)
    probe = epath.Path(folder) / f".writable_{jax.process_index()}_{os.getpid()}"
    try:
        make_folder(folder)
        replace_text(probe, "")
        remove(probe)  # another machine with a probe of the same name may have removed it
    except (OSError, Denied) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot write to {flag} {folder}: {cause}") from error


def check_vocabulary(data: TrainingSource, vocab_size: int) -> None:
    """Check that every id that the vocabulary emits has a row of the embedding.

    Raises:
      UserError: The vocabulary has more than `vocab_size` ids.
    """
    needed = data.vocabulary_size()
    if needed > vocab_size:
        raise UserError(
            f"vocabulary '{data.vocabulary_name()}' has {needed} ids, but the model's "
            f"embedding has only {vocab_size} rows: set --gin.VOCAB_SIZE to {needed} or more"
        )
