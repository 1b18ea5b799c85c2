"""Checks that what a run reads now is what it was trained with."""

from __future__ import annotations

from collections.abc import Callable

from etils import epath

from fire_lm.data import Tokenized
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.processes import note_once
from fire_lm.runs.input_files import absolute, fingerprint, module_source, sha256_or_empty
from fire_lm.runs.inputs import found_vocabulary, read_inputs


def check_vocabulary_of(
    workdir: str | epath.Path, data: Tokenized, configured: Callable[[], str]
) -> None:
    """Check that the vocabulary of `data` has the content of the one with which a run was trained.

    Without a record, the file that the run's configuration names is taken to be unchanged.

    Args:
      workdir: The run directory.
      data: The data to check. Blocks without a vocabulary state that of their manifest.
      configured: A function that returns the vocabulary in the run's configuration.

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
        name, own = inputs.original, found_vocabulary(inputs.vocabulary, inputs, workdir)
    else:
        name, own = configured(), ""
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
