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
from typing import Any

from etils import epath

from fire_lm.checkpoints import available_steps
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, GinText
from fire_lm.processes import note_once
from fire_lm.runs.input_files import (
    absolute,
    copy_vocabulary,
    fingerprint,
    module_source,
    sha256_or_empty,
    split_kind,
)
from fire_lm.storage import (
    place,
    present,
    read_bytes,
    replace_text,
)

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
    """

    folder: str = ""
    vocabulary: str = ""
    original: str = ""
    vocabulary_sha256: str = ""
    copy: str = ""
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    modules: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)


def read_inputs(workdir: str | epath.Path) -> Inputs:
    """Return the recorded inputs of a run, or an empty record if there is none.

    Raises:
      UserError: The record is damaged.
    """
    path = place(workdir) / FILE
    content = read_bytes(path)
    try:
        return Inputs() if content is None else Inputs(**json.loads(content))
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
    before = read_inputs(workdir) if available_steps(workdir) else Inputs()
    name = data.vocabulary or "" if data else ""
    vocabulary = found_vocabulary(name, before, workdir)
    identity = fingerprint(vocabulary) if vocabulary else data and data.vocabulary_identity()
    # A run that resumes with its copy keeps the path of the original.
    keeps = vocabulary != name and vocabulary == _own_copy(before, workdir)
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
    replace_text(place(workdir) / FILE, json.dumps(dataclasses.asdict(inputs), indent=1) + "\n")


def located(experiment: Experiment, workdir: str | epath.Path) -> dict[str, Any]:
    """Return the paths, by name, at which the inputs of a saved run are found now.

    The copy of the vocabulary in the run directory comes first, then the path as it was when the
    run was started, and then the path relative to the current folder. Only a vocabulary with the
    recorded fingerprint is taken. If nothing is found, the path is that of the original.
    """
    inputs = read_inputs(workdir)
    if not inputs.folder:
        return {}
    paths: dict[str, Any] = {}
    for name, kind, value in experiment.paths:
        if kind == "vocabulary":
            paths[name] = found_vocabulary(value, inputs, workdir)
        elif kind == "data" and isinstance(value, tuple):
            paths[name] = tuple(_folder(path, inputs) for path in value)
        elif kind == "data":
            paths[name] = _folder(value, inputs)
    return paths


def own_vocabulary(experiment: Experiment, workdir: str | epath.Path) -> dict[str, str]:
    """Return where the vocabulary of a run that resumes is, by name, if its name is unchanged.

    The file of this name may have been moved or changed since.
    """
    inputs, paths = read_inputs(workdir), {}
    for name, kind, value in experiment.paths:
        if kind == "vocabulary" and value == inputs.vocabulary:
            paths[name] = own = found_vocabulary(value, inputs, workdir)
            if fingerprint(value) not in (None, inputs.vocabulary_sha256, fingerprint(own)):
                note_once(f"{absolute(value)} is not the vocabulary of {workdir}: {own} is used")
    return paths


def with_located(experiment: Experiment, workdir: str | epath.Path) -> Experiment:
    """Return the saved experiment of a run with the paths at which its inputs are found now."""
    return experiment.with_values(located(experiment, workdir), f"{place(workdir) / FILE}")


def inherited_vocabulary(name: str, workdir: str | epath.Path) -> str:
    """Return the name that a run gives to the vocabulary `name` of the run that it starts from.

    The path of the original is preferred to that of the copy, so that runs that start from several
    runs with one vocabulary have the same configuration.
    """
    inputs = read_inputs(workdir)
    if name == inputs.vocabulary and inputs.vocabulary_sha256:
        if fingerprint(inputs.original) == inputs.vocabulary_sha256:
            return inputs.original
    return found_vocabulary(name, inputs, workdir)


def located_text(experiment: Experiment, workdir: str | epath.Path) -> GinText:
    """Return `located` as a gin text, which later files and bindings may override."""
    lines = [f"{name} = {value!r}\n" for name, value in located(experiment, workdir).items()]
    return GinText(str(place(workdir) / FILE), "".join(lines))


def same_place(
    name: str, old: Any, new: Any, experiment: Experiment, workdir: str | epath.Path
) -> bool:
    """Return whether the path `name` of an experiment still names the same input as when saved.

    `old` is the saved value, and `new` is that of the experiment.
    """
    kinds = {name: kind for name, kind, _ in experiment.paths}
    inputs = read_inputs(workdir)
    if name not in kinds or not all(isinstance(x, str) and x for x in (old, new)):
        return False
    if absolute(old, inputs.folder) == absolute(new):
        return True
    if name == "PAIRS":  # the task has the file's name, and PAIRS_SHA256 is compared as well
        return os.path.basename(old) == os.path.basename(new)
    expected = inputs.vocabulary_sha256 if old == inputs.vocabulary else ""
    return kinds[name] == "vocabulary" and bool(expected) and fingerprint(new) == expected


def found_vocabulary(name: str, inputs: Inputs, workdir: str | epath.Path) -> str:
    """Return where the vocabulary `name` of a configuration is now."""
    if not inputs.folder or name in ("", "bytes"):
        return name
    if name != inputs.vocabulary or not inputs.vocabulary_sha256:
        places = [absolute(name, inputs.folder), name]
        return next(filter(fingerprint, places), places[0])
    places = [_own_copy(inputs, workdir), inputs.original, name]
    matching = (name for name in places if name and fingerprint(name) == inputs.vocabulary_sha256)
    return next(matching, inputs.original)


def _own_copy(inputs: Inputs, workdir: str | epath.Path) -> str:
    """Return the absolute path of the copy of a run's vocabulary, or "" if there is none."""
    if not inputs.copy:
        return ""
    kind, path = split_kind(inputs.copy)
    return absolute(f"{kind}{place(workdir) / path}")


def _folder(path: str, inputs: Inputs) -> str:
    original = absolute(path, inputs.folder)
    if original == path or present(original) or not present(path):
        return original
    note_once(f"{original} does not exist: {absolute(path)} is read instead")
    return path
