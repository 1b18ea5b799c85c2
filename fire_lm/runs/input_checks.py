"""Checks that what a run reads now is what it was trained with."""

from __future__ import annotations

from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.processes import note_once
from fire_lm.runs.input_files import absolute, module_source, sha256_or_empty
from fire_lm.runs.inputs import read_inputs


def check_texts_of(workdir: str | epath.Path, experiment: Experiment) -> None:
    """Check that the text files of a run's synthetic task have the content of training.

    Raises:
      UserError: A file is missing or differs. The message contains both SHA-256s.
    """
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
