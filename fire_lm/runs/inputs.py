"""The inputs that a run needs later: recorded with their identity, and found from any folder.

A configuration contains paths as they were given, often relative to the folder in which the command
was started. `inputs.json`, next to `config.gin`, therefore records this folder and the SHA-256 of
the vocabulary, of a task's text and of the user's modules. The vocabulary itself is copied to
`vocabulary/`, so that a run can be moved as a folder.

Classes list the parameters that are paths in their class variable `paths`, which maps each name to
its kind: "vocabulary", "data" (a data set, token blocks or a file of pairs), "text" (a file that a
synthetic task hides its needles in) or "run" (INIT_FROM).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from etils import epath

from fire_lm.checkpoints import available_steps
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, GinText, InputPath
from fire_lm.processes import note_once
from fire_lm.runs.input_files import (
    absolute,
    copy_vocabulary,
    fingerprint,
    module_source,
    sha256_or_empty,
    split_kind,
)
from fire_lm.storage import place, present, read_bytes, replace_text

FILE = "inputs.json"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of a run, as they were when the run was last started.

    Attributes:
      folder: The folder to which the paths in the configuration are relative, or "" without a
        record.
      vocabulary: The name of the vocabulary in the configuration.
      original: The vocabulary's name with an absolute path, from which the copy was made.
      vocabulary_sha256: The fingerprint of the vocabulary, or "" if it is unknown.
      copy: The name of the copy of the vocabulary, relative to the run directory, or "".
      texts: The SHA-256 of the texts of synthetic tasks, by path.
      modules: The path and the SHA-256 of the imported modules, by name.
      workdir: The run directory, which is not part of the record.
    """

    folder: str = ""
    vocabulary: str = ""
    original: str = ""
    vocabulary_sha256: str = ""
    copy: str = ""
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    modules: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    workdir: str = ""

    @property
    def own_copy(self) -> str:
        """The absolute path of the copy of the run's vocabulary, or "" if there is none."""
        if not self.copy:
            return ""
        kind, path = split_kind(self.copy)
        return absolute(f"{kind}{place(self.workdir) / path}")

    def located_vocabulary(self, name: str) -> str:
        """Return where the vocabulary `name` of a configuration is now."""
        if not self.folder or name in ("", "bytes"):
            return name
        if name != self.vocabulary or not self.vocabulary_sha256:
            places = [absolute(name, self.folder), name]
            return next(filter(fingerprint, places), places[0])
        places = [self.own_copy, self.original, name]
        matching = (path for path in places if path and fingerprint(path) == self.vocabulary_sha256)
        return next(matching, self.original)

    def inherited_vocabulary(self, name: str) -> str:
        """Return the name that a run gives to the vocabulary `name` of the run it starts from.

        The path of the original is preferred to that of the copy, so that runs that start from
        several runs with one vocabulary have the same configuration.
        """
        if name == self.vocabulary and self.vocabulary_sha256:
            if fingerprint(self.original) == self.vocabulary_sha256:
                return self.original
        return self.located_vocabulary(name)

    def own_vocabulary(self, paths: Iterable[InputPath]) -> dict[str, str]:
        """Return where the vocabulary of a run that resumes is, by name, if its name is unchanged.

        The file of this name may have been moved or changed since.
        """
        own = {}
        for name, kind, value in paths:
            if kind == "vocabulary" and value == self.vocabulary:
                own[name] = path = self.located_vocabulary(value)
                if fingerprint(value) not in (None, self.vocabulary_sha256, fingerprint(path)):
                    other = absolute(value)
                    note_once(f"{other} is not the vocabulary of {self.workdir}: {path} is used")
        return own

    def located(self, paths: Iterable[InputPath]) -> dict[str, Any]:
        """Return where the inputs of a saved run are found now, by name, if not at their paths.

        The copy of the vocabulary in the run directory comes first, then the path as it was when
        the run was started, and then the path relative to the current folder. Only a vocabulary
        with the recorded fingerprint is taken. If nothing is found, the path is the original one.
        """
        if not self.folder:
            return {}
        places: dict[str, Any] = {}
        for name, kind, value in paths:
            if kind == "vocabulary":
                places[name] = self.located_vocabulary(value)
            elif kind == "data" and isinstance(value, tuple):
                places[name] = tuple(map(self._located_data, value))
            elif kind == "data":
                places[name] = self._located_data(value)
        saved = {name: value for name, _, value in paths}
        return {name: path for name, path in places.items() if path != saved[name]}

    def _located_data(self, path: str) -> str:
        """Return where a data set is now: at its original place or, failing that, from here."""
        original = absolute(path, self.folder)
        if original == path or present(original) or not present(path):
            return original
        note_once(f"{original} does not exist: {absolute(path)} is read instead")
        return path

    def same_input(self, name: str, old: Any, new: Any, paths: Iterable[InputPath]) -> bool:
        """Return whether the value of `name`, if it is a path, still names the same input.

        `old` is the saved value, `new` is that of an experiment, and `paths` are its paths.
        """
        kind = next((path.kind for path in paths if path.name == name), "")
        if not kind or not all(isinstance(x, str) and x for x in (old, new)):
            return False
        if absolute(old, self.folder) == absolute(new):
            return True
        if name == "PAIRS":  # the task has the file's name, and PAIRS_SHA256 is compared as well
            return os.path.basename(old) == os.path.basename(new)
        expected = self.vocabulary_sha256 if old == self.vocabulary else ""
        return kind == "vocabulary" and bool(expected) and fingerprint(new) == expected


def read_inputs(workdir: str | epath.Path) -> Inputs:
    """Return the recorded inputs of a run, or an empty record if there is none.

    Raises:
      UserError: The record is damaged.
    """
    path = place(workdir) / FILE
    content = read_bytes(path)
    try:
        facts = {} if content is None else json.loads(content)
        return Inputs(**facts, workdir=str(workdir))
    except (ValueError, TypeError):
        raise UserError(
            f"{path} is damaged: move it away; the paths in the run's configuration are then "
            "relative to the current folder"
        ) from None


def record_inputs(experiment: Experiment, workdir: str | epath.Path) -> None:
    """Write `inputs.json` for a run that starts, and copy its vocabulary.

    Raises:
      RunFailed, OSError: A file cannot be written.
    """
    data: TrainingSource | None = None
    with contextlib.suppress(UserError):  # No run could start with an imported configuration.
        data = experiment.train.data
    # Without a checkpoint, a run starts over.
    before = read_inputs(workdir) if available_steps(workdir) else Inputs(workdir=str(workdir))
    name = data.vocabulary or "" if data else ""
    vocabulary = before.located_vocabulary(name)
    identity = fingerprint(vocabulary) if vocabulary else data and data.vocabulary_identity()
    # A run that resumes with its copy keeps the path of the original.
    keeps = vocabulary != name and vocabulary == before.own_copy
    inputs = Inputs(
        folder=os.getcwd(),
        vocabulary=name,
        original=before.original if keeps else absolute(vocabulary),
        vocabulary_sha256=identity or "",
        copy=copy_vocabulary(vocabulary, workdir),
        texts={
            path: digest
            for _, kind, path in experiment.paths
            if kind == "text" and (digest := sha256_or_empty(path))
        },
        modules={name: module_source(name) for name in experiment.imports},
    )
    record = dataclasses.asdict(inputs)
    del record["workdir"]
    replace_text(place(workdir) / FILE, json.dumps(record, indent=1) + "\n")


def with_located(experiment: Experiment, workdir: str | epath.Path) -> Experiment:
    """Return the saved experiment of a run with the paths at which its inputs are found now."""
    located = read_inputs(workdir).located(experiment.paths)
    return experiment.with_values(located, f"{place(workdir) / FILE}")


def located_text(experiment: Experiment, workdir: str | epath.Path) -> GinText:
    """Return what `with_located` changes as a gin text, which later files may override."""
    located = read_inputs(workdir).located(experiment.paths)
    lines = [f"{name} = {value!r}\n" for name, value in located.items()]
    return GinText(str(place(workdir) / FILE), "".join(lines))


def check_texts_of(workdir: str | epath.Path, experiment: Experiment) -> None:
    """Raise UserError if a text file of a run's synthetic task is missing or has changed since."""
    inputs = read_inputs(workdir)
    for _, kind, path in experiment.paths:
        expected = inputs.texts.get(path) if kind == "text" else None
        if not expected or (digest := sha256_or_empty(path)) == expected:
            continue
        problem = f"has SHA-256 {digest}" if digest else "does not exist"
        raise UserError(
            f"{workdir} was trained with the text {path} of SHA-256 {expected}, but "
            f"{absolute(path)} {problem}\nrun this command in {inputs.folder}"
        )


def note_changed_modules(workdir: str | epath.Path) -> None:
    """Report, once, each imported module whose source has changed since the run was started."""
    for name, (path, sha256) in read_inputs(workdir).modules.items():
        now, changed = module_source(name)
        if sha256 and changed != sha256:
            where = "" if now == path else f", which was {path}"
            note_once(
                f"warning: the module {name} ({now}) has changed since {workdir} began{where}"
            )
