"""Checks that a run directory belongs to the experiment, and comparisons with the source run."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath

from jax.tree_util import tree_leaves_with_path

from fire_lm import models
from fire_lm.checkpoints import available_steps, split_run
from fire_lm.config import ABSENT, Config, differences
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.experiment import (
    check_positions,
    finetunes,
    training_of,
    training_root,
)
from fire_lm.runs.inputs import own_vocabulary, same_place
from fire_lm.runs.kept_lengths import kept_lengths, open_lengths
from fire_lm.runs.saved import (
    damaged,
    model_of_run,
    newest_config,
    no_run,
    saved_config,
    tokenized_of_run,
)


def source_of(config: Config) -> str:
    """Return the directory of the run from which training starts, or ""."""
    return split_run(str(config.values(training_root(config))["init_from"]))[0]


def check_not_imported(workdir: str) -> None:
    """Reject training in a folder that `fire-lm import` wrote.

    The imported checkpoint has step 0 and no optimizer state, so training in this folder would
    begin with newly initialised parameters.
    """
    if 0 in available_steps(workdir):
        raise UserError(
            f"{workdir} contains an imported model (checkpoint 0)\nto continue training it, choose "
            f"another --workdir and add --gin.INIT_FROM={workdir}"
        )


def check_same_experiment(config: Config, workdir: str, allow_change: bool) -> None:
    """Reject a workdir that belongs to another experiment.

    An experiment that only trains for more steps, that only overlaps the same operations in another
    way, or that names the same inputs by other paths, counts as the same experiment. If
    `allow_change` is True, only the kind of training and the encoding must match.

    Raises:
      UserError: The experiments differ, or the saved configuration cannot be read.
    """
    saved = newest_config(workdir)
    if saved is None:
        return
    check_same_kind(config, workdir)
    if allow_change:
        check_same_encoding(config, workdir)
        return
    root = training_root(config)
    try:
        old = saved.read_bytes().decode("utf-8-sig")
        differing = differences(old, config, root=root)
    except UnicodeError:
        raise damaged(saved, "it is not UTF-8 text") from None
    except UserError as error:
        raise damaged(saved, str(error)) from error
    if lacking := [str(one.name) for one in differing if one.old is ABSENT]:
        raise damaged(saved, f"it lacks {', '.join(lacking[:3])}")
    changed = [
        str(difference)
        for difference in differing
        if difference.name != f"{root}.overlap_gathers"
        and (
            difference.name not in ("TRAIN_STEPS", "PRETRAINING_STEPS", f"{root}.train_steps")
            or difference.new <= difference.old
        )
        and not same_place(difference.name, difference.old, difference.new, config, workdir)
    ]
    if changed:
        remedy = (
            ", or add --allow_config_change to continue in this one"
            if _can_continue(config, workdir)
            else ": its checkpoints fit only the same arrays, SEED, TRAIN_LENGTH and data"
        )
        raise UserError(
            f"{workdir} contains another experiment ({saved.name}): {'; '.join(changed)}\n"
            f"choose another --workdir{remedy}"
        )


def _can_continue(config: Config, workdir: str) -> bool:
    """Return whether a checkpoint of the run in `workdir`, if any, fits this configuration.

    Its arrays must have the same shapes, and its position must belong to the same rows of data.
    """
    if not available_steps(workdir):
        return True
    run, trained = training_of(config), training_of(saved_config(workdir))
    if (run.seed, run.train_length) != (trained.seed, trained.train_length):
        return False
    if run.data.fixed_batch and run.batch_size != trained.batch_size:
        return False
    arrays = [
        [(name, leaf.shape, leaf.dtype) for name, leaf in tree_leaves_with_path(one)]
        for one in (run.abstract_state(), trained.abstract_state())
    ]
    return arrays[0] == arrays[1] and _rows_of(run.data) == _rows_of(trained.data)


def _rows_of(data: TrainingSource) -> dict[str, object]:
    """Return the fields of data, except where it is stored."""
    fields: dict[str, object] = {
        field.name: getattr(data, field.name)
        for field in dataclasses.fields(data)  # type: ignore[arg-type]  # kinds are dataclasses
        if field.name not in ("data_dir", "path", "file")
    }
    return fields | {"kind": type(data), "vocabulary": PurePath(data.vocabulary or "").name}


def check_same_kind(config: Config, workdir: str) -> None:
    """Raise UserError if pretraining would continue a finetuning run, or vice versa."""
    saved, ours = newest_config(workdir), training_root(config)
    try:
        theirs = "finetune" if finetunes([str(saved)], (), "") else "pretrain"
    except UserError as error:
        raise damaged(saved, str(error).removeprefix("--gin_file: ")) from error
    if ours != theirs:
        raise UserError(
            f"{workdir} was created by `fire-lm {theirs}`, so `fire-lm {ours}` cannot continue it: "
            "choose another --workdir"
        )


def check_same_encoding(config: Config, workdir: str) -> None:
    """Reject an encoding other than that of the saved checkpoints.

    The states of two encodings differ in meaning even if their arrays have the same names.
    """
    old, new = (model_of_run(workdir), config.call("build_decoder"))
    names = [models.encoding_names(model) for model in (old, new)]
    if names[0] != names[1] and available_steps(workdir):
        raise UserError(
            f"{workdir} was trained with {names[0]}, so it cannot be continued with {names[1]}\n"
            "to start from its parameters with another encoding, choose another --workdir and add "
            f"--gin.INIT_FROM={workdir}"
        )


def with_kept_lengths(config: Config, workdir: str, allow_change: bool) -> Config:
    """Return `config` with the lengths that its model keeps from its source; see kept_lengths.py.

    The source is the run in `workdir` if it has already started, and otherwise the run in
    INIT_FROM. If there is nothing to change, `config` itself is returned.

    Raises:
      UserError: INIT_FROM contains no run, or the configuration of the source cannot be read.
    """
    if not open_lengths(config):
        return config
    source = source_of(config)
    started = bool(workdir) and newest_config(workdir) is not None
    if started and not (source or allow_change):
        return config  # the run continues; `check_same_experiment` reports any differences
    if not started and not source:
        return config
    where = workdir if started else source
    if not started and newest_config(source) is None:
        if workdir and available_steps(workdir):
            return config  # the run resumes although its configuration was moved away
        raise UserError(f"INIT_FROM: {no_run(source)}")
    trained = saved_config(where)
    ours, theirs = (one.call("build_decoder") for one in (config, trained))
    kept = kept_lengths(config, trained) if models.same_meaning(ours, theirs) else {}
    return config.with_values(kept, f"kept from {where}") if kept else config


def with_own_vocabulary(config: Config, workdir: str) -> Config:
    """Return `config` with the vocabulary of the run in `workdir`, if it resumes from a checkpoint.

    If the path of the vocabulary is unchanged, the copy in the run directory replaces it, so the
    run continues even if the file has been moved or changed since.

    Raises:
      UserError: The vocabulary is not the one with which the run was started.
    """
    begun = workdir and newest_config(workdir) is not None and available_steps(workdir)
    if not begun or training_of(config).data.vocabulary is None:
        return config
    own = own_vocabulary(config, workdir)
    config = config.with_values(own, f"the vocabulary of {workdir}") if own else config
    tokenized_of_run(config, workdir)  # checks it
    return config


def check_new(config: Config, workdir: str) -> None:
    """Reject settings with which a new run would be flawed; runs that have them may resume."""
    if not (workdir and available_steps(workdir)):
        check_positions(training_of(config))


def compare_with_source(
    model: models.Decoder, trained: models.Decoder, source: str, kept: bool
) -> str:
    """Describe how the model differs from that of `source`, the run in INIT_FROM.

    If `kept` is True, some values were kept from that run instead of following from this run's
    length. The description then also lists the model's length-dependent values.
    """
    changed = [
        f"{name} {old} -> {new}" for name, (old, new) in models.changes(trained, model).items()
    ]
    line = f"model compared with {source}: {'; '.join(changed) or 'unchanged'}"
    if not kept:
        return line
    values = [f"{name} {value}" for name, value in models.lengths(model).items()]
    return f"{line}; kept from that run: {', '.join(values)}"


def same_text_warning(config: Config, source: str) -> str:
    """Return a warning if the run reads its text in the same order as `source` did, or ""."""
    if available_steps(source) == [0]:  # an imported model has read nothing
        return ""
    try:
        run, trained = training_of(config), training_of(saved_config(source))
    except UserError:  # what the source read cannot be found out
        return ""
    same = all(
        getattr(run, name) == getattr(trained, name) for name in ("data", "seed", "train_length")
    )
    if not same:
        return ""
    return (
        f"warning: this run reads the text that {source} has read, in the same order, because "
        "SEED, TRAIN_LENGTH and the data are the same: set another --gin.SEED to change the order"
    )
