"""Checks that a run directory belongs to the experiment, and comparisons with the source run."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath

from jax.tree_util import tree_leaves_with_path

from fire_lm import models
from fire_lm.checkpoints import available_steps, split_run
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.experiment import ABSENT, Experiment, check_positions
from fire_lm.runs.inputs import own_vocabulary, same_place
from fire_lm.runs.saved import Saved, no_run, read_saved, tokenized_of_run


def source_of(experiment: Experiment) -> str:
    """Return the directory of the run from which training starts, or ""."""
    return split_run(str(experiment.values(experiment.kind)["init_from"]))[0]


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


def check_same_experiment(
    experiment: Experiment, begun: Saved | None, allow_change: bool = False
) -> None:
    """Reject a run directory that belongs to another experiment.

    An experiment that only trains for more steps, that only overlaps the same operations in another
    way, or that names the same inputs by other paths, counts as the same experiment. If
    `allow_change` is True, only the kind of training and the encoding must match.

    Raises:
      UserError: The experiments differ, or the saved configuration cannot be loaded.
    """
    if begun is None:
        return
    kind, workdir = experiment.kind, begun.workdir
    if begun.experiment.kind != kind:
        raise UserError(
            f"{workdir} was created by `fire-lm {begun.experiment.kind}`, so `fire-lm {kind}` "
            "cannot continue it: choose another --workdir"
        )
    if allow_change:
        check_same_encoding(experiment, begun)
        return
    differing = experiment.differences_from(begun.experiment)
    if lacking := [difference.name for difference in differing if difference.old is ABSENT]:
        raise begun.damaged(f"it lacks {', '.join(lacking[:3])}")
    changed = [
        str(difference)
        for difference in differing
        if (
            difference.name not in ("TRAIN_STEPS", "PRETRAINING_STEPS", f"{kind}.train_steps")
            or difference.new <= difference.old
        )
        and not same_place(difference.name, difference.old, difference.new, experiment, workdir)
    ]
    if changed:
        remedy = (
            ", or add --allow_config_change to continue in this one"
            if _can_continue(experiment, begun)
            else ": its checkpoints fit only the same arrays, SEED, TRAIN_LENGTH and data"
        )
        raise UserError(
            f"{workdir} contains another experiment ({begun.path.name}): {'; '.join(changed)}\n"
            f"choose another --workdir{remedy}"
        )


def _can_continue(experiment: Experiment, begun: Saved) -> bool:
    """Return whether a checkpoint of a run, if it has any, fits this experiment.

    Its arrays must have the same shapes, and its position must belong to the same rows of data.
    """
    if not available_steps(begun.workdir):
        return True
    run, trained = experiment.train, begun.experiment.train
    if (run.seed, run.train_length) != (trained.seed, trained.train_length):
        return False
    if run.data.fixed_batch and run.batch_size != trained.batch_size:
        return False
    arrays = [
        [(name, leaf.shape, leaf.dtype) for name, leaf in tree_leaves_with_path(state)]
        for state in (run.abstract_state(), trained.abstract_state())
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


def check_same_encoding(experiment: Experiment, begun: Saved) -> None:
    """Reject an encoding other than that of the saved checkpoints.

    The states of two encodings differ in meaning even if their arrays have the same names.
    """
    old, new = map(models.encoding_names, (begun.experiment.model, experiment.model))
    if old != new and available_steps(begun.workdir):
        raise UserError(
            f"{begun.workdir} was trained with {old}, so it cannot be continued with {new}\n"
            "to start from its parameters with another encoding, choose another --workdir and add "
            f"--gin.INIT_FROM={begun.workdir}"
        )


def with_kept_lengths(
    experiment: Experiment, workdir: str, begun: Saved | None, allow_change: bool = False
) -> Experiment:
    """Return the experiment with the lengths that its model keeps from another run.

    See `Experiment.open_lengths`. The other run is the one in `workdir` itself if it has already
    begun, and otherwise the one in INIT_FROM. If there is nothing to change, the result is
    `experiment` itself.

    Raises:
      UserError: INIT_FROM contains no run, or the configuration of the other run cannot be read.
    """
    source = source_of(experiment)
    if not experiment.open_lengths or not (source or (begun and allow_change)):
        return experiment  # if the run continues, `check_same_experiment` reports any differences
    saved = begun or read_saved(source)
    if saved is None:
        if workdir and available_steps(workdir):
            return experiment  # the run resumes although its configuration was moved away
        raise UserError(f"INIT_FROM: {no_run(source)}")
    trained = saved.experiment
    if not models.same_meaning(experiment.model, trained.model):
        return experiment
    return experiment.with_values(experiment.kept_lengths(trained), f"kept from {saved.workdir}")


def with_own_vocabulary(experiment: Experiment, begun: Saved | None) -> Experiment:
    """Return the experiment with the vocabulary of its run, if this resumes from a checkpoint.

    If the path of the vocabulary is unchanged, the copy in the run directory replaces it, so the
    run continues even if the file has been moved or changed since.

    Raises:
      UserError: The vocabulary is not the one with which the run was started.
    """
    if begun is None or not available_steps(begun.workdir):
        return experiment
    if experiment.train.data.vocabulary is None:
        return experiment
    own = own_vocabulary(experiment, begun.workdir)
    experiment = experiment.with_values(own, f"the vocabulary of {begun.workdir}")
    tokenized_of_run(experiment, begun.workdir)  # checks it
    return experiment


def check_new(experiment: Experiment, workdir: str) -> None:
    """Reject settings with which a new run would be flawed; runs that have them may resume."""
    if not (workdir and available_steps(workdir)):
        check_positions(experiment.train)


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


def same_text_warning(experiment: Experiment, source: Saved) -> str:
    """Return a warning if the run reads its text in the same order as its source did, or ""."""
    if available_steps(source.workdir) == [0]:  # an imported model has read nothing
        return ""
    try:
        run, trained = experiment.train, source.experiment.train
    except UserError:  # what the source read cannot be found out
        return ""
    same = all(
        getattr(run, name) == getattr(trained, name) for name in ("data", "seed", "train_length")
    )
    if not same:
        return ""
    return (
        f"warning: this run reads the text that {source.workdir} has read, in the same order, "
        "because SEED, TRAIN_LENGTH and the data are the same: set another --gin.SEED to change "
        "the order"
    )
