"""A command that starts or resumes a training run: its checks, and what the run keeps."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import PurePath

from jax.tree_util import tree_leaves_with_path

from fire_lm import models
from fire_lm.checkpoints import available_steps, split_run
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.experiment import ABSENT, Experiment, check_positions
from fire_lm.runs.changed import affects_results, changes
from fire_lm.runs.inputs import read_inputs
from fire_lm.runs.saved import Saved, read_saved, saved_run, tokenized_of_run
from fire_lm.training import Pretraining


@dataclasses.dataclass(frozen=True)
class Start:
    """An experiment that a command trains in a run directory, from the beginning or further.

    Attributes:
      stated: The experiment that gin files and bindings describe.
      workdir: The run directory, or "" if there is none.
      begun: The saved configuration of the run, if it has already started.
      allow_change: Whether the settings may differ from those with which the run started.
    """

    stated: Experiment
    workdir: str = ""
    begun: Saved | None = None
    allow_change: bool = False

    @property
    def source(self) -> str:
        """The directory of the run from which training starts, or ""."""
        return split_run(str(self.stated.values(self.stated.kind)["init_from"]))[0]

    @property
    def has_checkpoints(self) -> bool:
        """Whether the run resumes from a checkpoint; it does not need its source then."""
        return bool(self.workdir and available_steps(self.workdir))

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The experiment with the lengths and the name that it keeps; see `_with_kept_lengths`.

        Names are derived with more settings than those of earlier versions. A run whose name was
        derived keeps it, because its results are found by it.
        """
        experiment = self._with_kept_lengths()
        name = self.begun.experiment.label if self.begun else ""
        if name and _adds_settings(experiment.label, name):
            return experiment.with_values({"ENCODING": name}, "the name of the run")
        return experiment

    def _with_kept_lengths(self) -> Experiment:
        """Return the experiment with the lengths that its model keeps from another run.

        See `Experiment.open_lengths`. The other run is the one in `workdir` itself if it has
        already begun, and otherwise the one in INIT_FROM. If there is nothing to change, the result
        is `stated` itself.

        Raises:
          UserError: INIT_FROM contains no run, or the other run's configuration cannot be read.
        """
        stated, source = self.stated, self.source
        if not stated.open_lengths or not (source or (self.begun and self.allow_change)):
            return stated  # if the run continues, `check_same_experiment` reports any differences
        saved = self.begun or read_saved(source)
        if saved is None and self.has_checkpoints:
            return stated  # the run resumes although its configuration was moved away
        saved = saved or saved_run(source, "INIT_FROM")
        trained = saved.experiment
        if not models.same_meaning(stated.model, trained.model):
            return stated
        return stated.with_values(stated.kept_lengths(trained), f"kept from {saved.workdir}")

    @property
    def run(self) -> Pretraining:
        """The training run, with the vocabulary of the run directory if this resumes.

        If the path of the vocabulary is unchanged, the copy in the run directory replaces it, so
        the run continues even if the file has been moved or changed since.

        Raises:
          UserError: The vocabulary is not the one with which the run was started.
        """
        train = self.experiment.train
        if self.begun is None or not self.has_checkpoints or train.data.vocabulary is None:
            return train
        own = read_inputs(self.workdir).own_vocabulary(self.experiment.paths)
        experiment = self.experiment.with_values(own, f"the vocabulary of {self.workdir}")
        tokenized_of_run(experiment, self.workdir)  # checks it
        return experiment.train

    def check(self) -> None:
        """Reject a run directory that belongs to another experiment, and a flawed new run.

        An imported checkpoint has step 0 and no optimizer state, so training in the folder that
        `fire-lm import` wrote would begin with newly initialised parameters.
        """
        if self.workdir and 0 in available_steps(self.workdir):
            raise UserError(
                f"{self.workdir} contains an imported model (checkpoint 0)\nto continue training "
                f"it, choose another --workdir and add --gin.INIT_FROM={self.workdir}"
            )
        self.check_same_experiment(self.begun)
        self.check_new()

    def check_new(self) -> None:
        """Reject settings with which a new run would be flawed; runs that have them may resume."""
        if not self.has_checkpoints:
            check_positions(self.stated.train)

    def check_same_experiment(self, begun: Saved | None) -> None:
        """Reject a run directory that belongs to another experiment.

        An experiment that only trains for more steps, that is only observed in another way
        (`Pretraining.observing`), or that names the same inputs by other paths, counts as the same
        experiment. If `allow_change` is True, only the kind of training and the encoding must
        match.

        Raises:
          UserError: The experiments differ, or the saved configuration cannot be loaded.
        """
        if begun is None:
            return
        kind, saved, workdir = self.experiment.kind, begun.experiment, begun.workdir
        if saved.kind != kind:
            raise UserError(
                f"{workdir} was created by `fire-lm {saved.kind}`, so `fire-lm {kind}` cannot "
                "continue it: choose another --workdir"
            )
        self._check_same_source(begun)
        if self.allow_change:
            self._check_unfinished(begun)
            self._check_same_encoding(begun)
            self._check_past_lengths(begun)
            return
        differing = self.experiment.differences_from(saved)
        if lacking := [difference.name for difference in differing if difference.old is ABSENT]:
            raise begun.damaged(f"it lacks {', '.join(lacking[:3])}")
        if not differing:
            return
        if changed := [str(difference) for difference in changes(self.experiment, begun)]:
            remedy = (
                ", or add --allow_config_change to continue in this one"
                if not available_steps(workdir) or _fits(self.experiment.train, saved.train)
                else ": its checkpoints fit only the same arrays, SEED, TRAIN_LENGTH and data"
            )
            raise UserError(
                f"{workdir} contains another experiment ({begun.path.name}): "
                f"{'; '.join(changed)}\nchoose another --workdir{remedy}"
            )
        self._check_past_lengths(begun)

    def _check_same_source(self, begun: Saved) -> None:
        """Reject another INIT_FROM for a run that has begun, on which it would have no effect."""
        steps = available_steps(begun.workdir)
        for difference in changes(self.experiment, begun) if steps else ():
            if difference.name in ("INIT_FROM", f"{self.experiment.kind}.init_from"):
                raise UserError(
                    f"{begun.workdir} has reached step {max(steps)}, so another INIT_FROM has no "
                    f"effect ({difference})\nleave it as it was, or choose another --workdir"
                )

    def _check_unfinished(self, begun: Saved) -> None:
        """Reject other settings for a run that has already reached its last step."""
        newest, last = (
            max(available_steps(begun.workdir), default=0),
            self.experiment.train.train_steps,
        )
        changed = changes(self.experiment, begun, affects_results) if newest >= last else []
        if changed:
            raise UserError(
                f"{begun.workdir} has reached step {newest} of {last}, so other settings have no "
                f"effect ({'; '.join(map(str, changed))})\nraise TRAIN_STEPS, or choose another "
                "--workdir"
            )

    def _check_same_encoding(self, begun: Saved) -> None:
        """Reject an encoding other than that of the saved checkpoints.

        The states of two encodings differ in meaning even if their arrays have the same names.
        """
        old, new = map(models.encoding_names, (begun.experiment.model, self.experiment.model))
        if old != new and available_steps(begun.workdir):
            raise UserError(
                f"{begun.workdir} was trained with {old}, so it cannot be continued with {new}\n"
                "to start from its parameters with another encoding, choose another --workdir and "
                f"add --gin.INIT_FROM={begun.workdir}"
            )

    def _check_past_lengths(self, begun: Saved) -> None:
        """Reject a length schedule under which the steps that were taken had other lengths.

        A schedule by shares of the run changes with the number of steps.
        """
        run, newest = self.experiment.train, max(available_steps(begun.workdir), default=0)
        had_schedule = begun.experiment.values(self.experiment.kind).get("train_lengths")
        if not newest or (run.lengths.constant and not had_schedule):
            return
        trained = begun.experiment.train
        if run.lengths == trained.lengths:
            return
        for step in range(1, min(newest, run.train_steps, trained.train_steps) + 1):
            length, was = run.lengths.at(step), trained.lengths.at(step)
            if length != was:
                raise UserError(
                    f"{begun.workdir} has reached step {newest}, and step {step} had rows of {was} "
                    f"tokens, but with TRAIN_STEPS = {run.train_steps} and TRAIN_LENGTHS = "
                    f"{run.train_lengths} it would have had {length}: only later steps may change; "
                    "give the starts in TRAIN_LENGTHS as numbers of steps"
                )

    def compared_with(self, source: Saved) -> str:
        """Describe how the model differs from that of `source`, the run in INIT_FROM.

        If some values were kept from that run instead of following from this run's length, the
        description also lists the model's length-dependent values. A line is added if the run reads
        its text in the same order as the source did.
        """
        model, trained = self.experiment.model, source.experiment.model
        changed = [
            f"{name} {old} -> {new}" for name, (old, new) in models.changes(trained, model).items()
        ]
        text = f"model compared with {source.workdir}: {'; '.join(changed) or 'unchanged'}"
        if self.experiment is not self.stated:
            lengths = models.lengths(model).items()
            values = [f"{name} {value}" for name, value in lengths if value is not None]
            text += f"; kept from that run: {', '.join(values)}"
        if self._reads_text_of(source):
            text += (
                f"\nwarning: this run reads the text that {source.workdir} has read, in the same "
                "order, because SEED, the longest rows and the data are the same: set another "
                "--gin.SEED to change the order"
            )
        return text

    def _reads_text_of(self, source: Saved) -> bool:
        if available_steps(source.workdir) == [0]:  # an imported model has read nothing
            return False
        try:
            runs = (self.experiment.train, source.experiment.train)
        except UserError:  # what the source read cannot be found out
            return False
        ours, theirs = ([run.data, run.seed, run.lengths.longest] for run in runs)
        return ours == theirs


def _adds_settings(label: str, name: str) -> bool:
    """Return whether a derived name is `name` with more settings, such as "fire-window-16".

    In the name of a schedule, they follow the encoding of any of its layers.
    """
    new, old = label.split("+"), name.split("+")
    added = len(new) == len(old) and all(map(_has_words, new, old))
    return label != name and (added or label.startswith(f"{name}-"))


def _has_words(label: str, name: str) -> bool:
    """Return whether `label` begins as `name` does, and has its other words in their order."""
    words, (first, *others) = iter(label.split("-")), name.split("-")
    return next(words) == first and all(other in words for other in others)


def _fits(run: Pretraining, trained: Pretraining) -> bool:
    """Return whether a checkpoint of `trained` fits `run`.

    Its arrays must have the same shapes, and its position must belong to the same rows of data.
    """
    if (run.seed, run.lengths.longest) != (trained.seed, trained.lengths.longest):
        return False
    if run.data.fixed_batch and run.batch_size != trained.batch_size:
        return False
    # An average of the parameters may be turned on or off (training/averages.py).
    run = dataclasses.replace(run, ema_decay=trained.ema_decay)
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
