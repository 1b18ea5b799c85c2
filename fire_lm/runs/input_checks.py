"""Checks that what a run reads now is what it was trained with."""

from __future__ import annotations

from collections.abc import Callable

from etils import epath

from fire_lm.checkpoints import available_steps, checkpoint_directory
from fire_lm.checkpoints.position import SHARED_FILE
from fire_lm.config import Config
from fire_lm.data import Tokenized
from fire_lm.data.identity import position_header, vocabulary_in_position
from fire_lm.errors import UserError
from fire_lm.processes import note_once
from fire_lm.runs.input_files import absolute, fingerprint, module_source, sha256_or_empty
from fire_lm.runs.inputs import found_vocabulary, paths_in, read_inputs
from fire_lm.storage import children, read_bytes


def check_vocabulary_of(
    workdir: str | epath.Path, data: Tokenized, configured: Callable[[], str]
) -> None:
    """Check that the vocabulary of `data` has the content of the one with which a run was trained.

    A run of an earlier version has no record, but its newest data position may contain the
    fingerprint. Otherwise, the file that the run's configuration names is taken to be unchanged.

    Args:
      workdir: The run directory.
      data: The data to check. Blocks without a vocabulary state that of their manifest.
      configured: A function that returns the vocabulary in the run's configuration.

    Raises:
      UserError: The vocabulary is missing or differs. The message contains both fingerprints.
    """
    vocabulary = data.vocabulary
    found = fingerprint(vocabulary) if vocabulary else data.vocabulary_identity()
    if not (vocabulary or found):
        return
    inputs = read_inputs(workdir)
    expected = inputs.vocabulary_sha256 if inputs else _in_position(workdir)
    name, own = configured(), ""
    if inputs and inputs.vocabulary:
        name, own = inputs.original, found_vocabulary(name, inputs, workdir)
    if not expected and name not in ("", vocabulary):
        expected = fingerprint(name) or ""
    if not expected and vocabulary not in ("", "bytes"):
        note_once(f"{workdir} does not record which file its vocabulary was: it is not checked")
    if not expected or found == expected:
        return
    was = name if expected == "bytes" else f"{name} of SHA-256 {expected}".lstrip()
    asked = absolute(vocabulary) or f"that of the blocks in {getattr(data, 'path', '')}"
    if not found:
        now = f"but {asked} does not exist"
    elif asked == name:
        now = f"but this file now has SHA-256 {found}"
    else:
        now = "not with bytes" if found == "bytes" else f"not with {asked} of SHA-256 {found}"
    omit = name not in ("", vocabulary) and fingerprint(own or name) == expected
    raise UserError(
        f"{workdir} was trained with the vocabulary {was}, {now}\n"
        + ("omit --gin.VOCABULARY" if omit else "set --gin.VOCABULARY to the original file")
    )


def check_texts_of(workdir: str | epath.Path, config: Config) -> None:
    """Check that the text files of a run's synthetic task have the content of training.

    Raises:
      UserError: A file is missing or differs. The message contains both SHA-256s.
    """
    inputs = read_inputs(workdir)
    header = {} if inputs else position_header(_position(workdir))
    for _, kind, path in paths_in(config):
        expected = inputs.texts.get(path) if inputs else header.get("text")
        if kind != "text" or not expected or (found := sha256_or_empty(path)) == expected:
            continue
        problem = f"has SHA-256 {found}" if found else "does not exist"
        remedy = f"run this command in {inputs.folder}" if inputs else "restore the file"
        raise UserError(
            f"{workdir} was trained with the text {path} of SHA-256 {expected}, but "
            f"{absolute(path)} {problem}\n{remedy}"
        )


def note_changed_modules(workdir: str | epath.Path) -> None:
    """Report, once, each imported module whose source has changed since the run was started."""
    inputs = read_inputs(workdir)
    for name, (path, sha256) in (inputs.modules if inputs else {}).items():
        now, changed = module_source(name)
        if sha256 and changed != sha256:
            where = "" if now == path else f", which was {path}"
            note_once(
                f"warning: the module {name} ({now}) has changed since {workdir} began{where}"
            )


def _in_position(workdir: str | epath.Path) -> str:
    return vocabulary_in_position(_position(workdir)) or ""


def _position(workdir: str | epath.Path) -> bytes:
    """Return a data position of the newest checkpoint, or b"" if there is no checkpoint."""
    steps = available_steps(workdir)
    if not steps:
        return b""
    inside = children(checkpoint_directory(workdir) / str(steps[-1]) / "position")
    files = [path for path in inside if path.name == SHARED_FILE or path.name.startswith("process")]
    return read_bytes(min(files)) or b"" if files else b""
