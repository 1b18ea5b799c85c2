"""The configuration, the model and the best steps of a run, as saved in the run's folder."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import cast

from etils import epath

from fire_lm.data import Tokenized, TrainingSource
from fire_lm.errors import UserError, first_line
from fire_lm.experiment import Experiment, GinText, ImportFailed, load_experiment
from fire_lm.processes import note_once
from fire_lm.results import TaskScore, ranked_steps, read_own, read_table
from fire_lm.results.task_rows import FILE as TASK_SCORES
from fire_lm.results.task_rows import steps_by_score
from fire_lm.runs.input_files import absolute, fingerprint
from fire_lm.runs.inputs import note_changed_modules, read_inputs, record_inputs
from fire_lm.storage import children, create_text, make_folder, place
from fire_lm.training.lock import writer_of

_RESUMED = "# resumed from step "  # the beginning of a configuration that a later start saved


def save_config(
    experiment: Experiment, workdir: str | epath.Path, resumed_from: int = 0
) -> epath.Path:
    """Write the configuration to config.gin and return the path of the file.

    Its first line has the step from which the run resumed, if any. The inputs of the run are
    recorded first, so that every configuration has its record.

    If config.gin exists, the first unused name among config_1.gin, config_2.gin and so on is used.
    The folder is created if it does not exist. No file is ever overwritten, and a crash leaves no
    incomplete configuration. Only one process of a job may call this function.
    """
    folder = place(workdir)
    try:
        make_folder(folder)
        record_inputs(experiment, workdir)
        names = itertools.chain(["config.gin"], (f"config_{i}.gin" for i in itertools.count(1)))
        text = f"{_RESUMED}{resumed_from}\n" * bool(resumed_from) + experiment.text()
        return next(folder / name for name in names if create_text(folder / name, text))
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"cannot write the configuration to {workdir}: {reason}") from None


def newest_config(
    workdir: str | epath.Path, inside: Sequence[epath.Path] | None = None
) -> epath.Path | None:
    """Return the path of the configuration with which a run was last started, or None.

    The result is None if the folder contains no run. `inside` lists the children of the folder if
    they are already known.

    Raises:
      RunFailed: The folder cannot be listed, so whether it contains a run is unknown.
    """
    return next(reversed(_configs(workdir, inside)), None)


def _configs(
    workdir: str | epath.Path, inside: Sequence[epath.Path] | None = None
) -> list[epath.Path]:
    """Return the paths of the configurations of all starts, the newest last."""
    by_number = {
        int(match[1] or 0): path
        for path in (children(place(workdir)) if inside is None else inside)
        if (match := re.fullmatch(r"config(?:_(\d+))?\.gin", path.name))
    }
    return [by_number[number] for number in sorted(by_number)]


@dataclasses.dataclass(frozen=True)
class Saved:
    """The configuration with which a run was last started.

    Attributes:
      workdir: The run directory.
      path: The file of the configuration, in the run directory.
      text: Its content.
    """

    workdir: str
    path: epath.Path
    text: str

    @property
    def resumed_from(self) -> int:
        """The step from which the start resumed; 0 if it began the run or recorded none."""
        first = self.text.partition("\n")[0]
        return int(first.removeprefix(_RESUMED)) if first.startswith(_RESUMED) else 0

    @property
    def settings(self) -> str:
        """The text without the step."""
        return self.text.partition("\n")[2] if self.resumed_from else self.text

    @property
    def experiment(self) -> Experiment:
        """The experiment that the configuration describes.

        Raises:
          UserError: The configuration cannot be loaded, because it is damaged or was written by
            another version of the code.
        """
        try:
            return _loaded(str(self.path), self.text)
        except ImportFailed as error:
            path, _ = read_inputs(self.workdir).modules.get(error.module, ("", ""))
            where = f"; the run was started with {path}" if path else ""
            raise UserError(f"{error}{where}") from error
        except UserError as error:
            note_changed_modules(self.workdir)  # which may be why the file no longer fits
            raise self.damaged(str(error)) from error

    def damaged(self, why: str) -> UserError:
        """Return the error for a configuration that cannot be loaded."""
        problem = why.partition("\n")[0].partition(": give one")[0]
        where = "" if str(self.path) in problem else f"{self.path}: "
        return UserError(
            f"{where}{problem}\nif the file is damaged, move it away: the command that trained the "
            "run will write a new one"
        )


@functools.lru_cache(maxsize=64)
def _loaded(path: str, text: str) -> Experiment:
    """Load a saved configuration; a command that asks for it again does not parse it again."""
    experiment = load_experiment([GinText(path, text)])
    experiment.check_complete()
    return experiment


def read_saved(workdir: str | epath.Path) -> Saved | None:
    """Read the configuration with which a run was last started, or return None if there is no run.

    Raises:
      RunFailed: The folder cannot be listed, so whether it contains a run is unknown.
      UserError: The configuration cannot be read.
    """
    path = newest_config(workdir)
    return None if path is None else _read(str(workdir), path)


def read_history(workdir: str | epath.Path) -> list[tuple[int, Saved]]:
    """Read the configurations with which the steps of a run were trained, the newest last.

    Each has the step from which it was used. Starts whose steps were discarded are left out, and so
    are those before a configuration that does not record its step, as earlier versions wrote them.

    Raises:
      RunFailed: The folder cannot be listed.
      UserError: A configuration cannot be read.
    """
    history: list[tuple[int, Saved]] = []
    for saved in (_read(str(workdir), path) for path in _configs(workdir)):
        since = saved.resumed_from
        history = [one for one in history if one[0] < since]
        if not history or history[-1][1].settings != saved.settings:
            history.append((since, saved))
        else:  # the same settings again
            history[-1] = history[-1][0], saved
    return history


def _read(workdir: str, path: epath.Path) -> Saved:
    saved = Saved(workdir, path, "")
    try:
        return dataclasses.replace(saved, text=path.read_bytes().decode("utf-8-sig"))
    except UnicodeError:
        raise saved.damaged("it is not UTF-8 text") from None
    except OSError as error:
        raise saved.damaged(f"cannot read {path}: {first_line(error)}") from error


def saved_run(workdir: str | epath.Path, named_by: str = "") -> Saved:
    """Return the configuration with which a run was last started.

    Args:
      named_by: What names the run, for the error, such as "INIT_FROM".

    Raises:
      UserError: The folder contains no run, or its configuration cannot be read.
    """
    saved = read_saved(workdir)
    if saved is None:
        raise UserError(f"{named_by}: {no_run(workdir)}") if named_by else no_run(workdir)
    return saved


def saved_experiment(workdir: str | epath.Path) -> Experiment:
    """Return the experiment with which a run was last started.

    Raises:
      UserError: The folder contains no run, or the configuration cannot be loaded.
    """
    return saved_run(workdir).experiment


def no_run(workdir: str | epath.Path, problem: str = "") -> UserError:
    """Return the error for a folder without a configuration, in which a run may be starting.

    Args:
      workdir: The folder.
      problem: What to say if no run is starting, instead of that the folder contains no run.
    """
    return UserError(starting(workdir) or problem or f"{workdir} contains no run (no config.gin)")


def starting(workdir: str | epath.Path) -> str:
    """Describe the process that is starting a run in a folder without a configuration, or ""."""
    writer = writer_of(str(workdir))
    return writer and (
        f"{workdir} contains no run yet: {writer} is starting one there, whose configuration is "
        "saved after its first step"
    )


def check_text_of_run(experiment: Experiment, workdir: str | epath.Path) -> None:
    """Raise UserError if a run was not trained on text, or not with the vocabulary of its text."""
    data = experiment.train.data
    if data.not_text:
        raise UserError(f"{workdir} was trained on {data.not_text}")
    check_same_vocabulary(_tokenized(data, workdir), workdir)


def tokenized_of_run(experiment: Experiment, workdir: str | epath.Path) -> Tokenized:
    """Return the data of a run, after checking its vocabulary.

    Raises:
      UserError: The run was trained on tokens that represent no text, or with another vocabulary.
    """
    data = _tokenized(experiment.train.data, workdir)
    check_same_vocabulary(data, workdir)
    return data


def vocabulary_of_run(experiment: Experiment, workdir: str | epath.Path) -> str:
    """Return the name of the vocabulary of a run with this configuration, without checking it.

    Raises:
      UserError: The run was trained on tokens that represent no text.
    """
    return _tokenized(experiment.train.data, workdir).vocabulary


def check_same_vocabulary(data: Tokenized, workdir: str | epath.Path) -> None:
    """Check that a run was trained with the vocabulary of `data`, whose file may have moved since.

    Without a record, the file that the run's configuration names is taken to be unchanged. Blocks
    without a vocabulary have that of their manifest.

    Raises:
      UserError: The vocabulary is missing or differs. The message contains both fingerprints.
    """
    vocabulary = data.vocabulary
    identity = fingerprint(vocabulary) if vocabulary else data.vocabulary_identity()
    if not (vocabulary or identity):
        return
    inputs = read_inputs(workdir)
    expected = inputs.vocabulary_sha256
    if inputs.vocabulary:
        name, own = inputs.original, inputs.located_vocabulary(inputs.vocabulary)
    else:
        name, own = vocabulary_of_run(saved_experiment(workdir), workdir), ""
    if not expected and name not in ("", vocabulary):
        expected = fingerprint(name) or ""
    if not expected and vocabulary not in ("", "bytes"):
        note_once(f"{workdir} does not record which file its vocabulary was: it is not checked")
    if not expected or identity == expected:
        return
    was = name if expected == "bytes" else f"{name} of SHA-256 {expected}".lstrip()
    given = absolute(vocabulary) or f"that of the blocks in {getattr(data, 'path', '')}"
    if not identity:
        now = f"but {given} does not exist"
    elif given == name:
        now = f"but this file now has SHA-256 {identity}"
    elif identity == "bytes":
        now = "not with bytes"
    else:
        now = f"not with {given} of SHA-256 {identity}"
    omit = name not in ("", vocabulary) and fingerprint(own or name) == expected
    raise UserError(
        f"{workdir} was trained with the vocabulary {was}, {now}\n"
        + ("omit --gin.VOCABULARY" if omit else "set --gin.VOCABULARY to the original file")
    )


def _tokenized(data: TrainingSource, workdir: str | epath.Path) -> Tokenized:
    if data.vocabulary is None:
        raise UserError(f"{workdir} was trained on {data.not_text}")
    return cast(Tokenized, data)


def best_steps(workdir: epath.Path, encoding: str) -> list[int]:
    """Return the evaluated steps of a run, starting with the best.

    The steps are ranked by the losses of sweeps or, if there are none, by the scores of tasks.
    """
    own = read_own(workdir, encoding)
    by_loss = ranked_steps(own.losses, own.texts.of)
    return by_loss or steps_by_score(read_table(workdir / TASK_SCORES, TaskScore))
