"""The configuration of a training run, including what a finetuning run inherits.

The gin files of a finetuning run specify only the task and the training settings. The model, the
name of its encoding, the vocabulary, and the length and number of rows in a batch come from the run
in INIT_FROM. They are read before the gin files, so that the gin files and the command line can
override them. The same holds for what follows from a file of pairs (PAIRS).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from fire_lm.checkpoints import split_run
from fire_lm.config import Config, stated
from fire_lm.config.files import SHIPPED
from fire_lm.config.syntax import Key, Ref
from fire_lm.data import Pairs
from fire_lm.data.pairs import file_sha256, longest_target, splits_of
from fire_lm.errors import UserError
from fire_lm.experiment import (
    finetunes,
    label_in,
    load_config,
    search_folders,
    training_root,
)
from fire_lm.runs.inputs import found_vocabulary, inherited_vocabulary, read_inputs
from fire_lm.runs.kept_lengths import MODEL
from fire_lm.runs.saved import newest_config, no_run, saved_config, vocabulary_of_run

_SOURCE = Key((), "", "INIT_FROM")
_PAIRS, _VOCABULARY = Key((), "", "PAIRS"), Key((), "", "VOCABULARY")
_DATA, _PAIRS_DATA = Key((), "finetune", "data"), Ref("Pairs", (), call=True)
_MACROS = "configs/model.gin"  # describes a model by macros if no run provides one


def training_config(arguments: argparse.Namespace, workdir: str) -> Config:
    """Return the configuration that the arguments describe, for pretraining or finetuning.

    Raises:
      UserError: The configuration or a file of pairs cannot be read, or INIT_FROM contains no run.
    """
    given = (arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    first = None
    if finetunes(*given):
        bound = stated(*given[:2], search_folders(given[2]))
        macros, first = inherited(str(bound.get(_SOURCE) or ""), workdir)
        if _PAIRS in bound:
            check_unchanged(str(bound[_PAIRS]), workdir)
            first |= of_pairs(bound, macros, workdir)
    return load_config(*given, arguments.imports, first)


def inherited(source: str, workdir: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the macros that a finetuning run inherits, and its model with them as gin text.

    The text is keyed by its file. Both are those of the run in `workdir` if this run has already
    started, and otherwise those of `source`. If this run has not started and `source` is empty,
    there are no macros, and the text describes a model by macros.

    Raises:
      UserError: `source` contains no run, or its configuration cannot be loaded.
    """
    begun = bool(workdir) and newest_config(workdir) is not None
    where = workdir if begun else split_run(source)[0]
    if not where:
        return {}, {_MACROS: (SHIPPED / _MACROS).read_text()}
    saved = newest_config(where)
    if saved is None:
        raise UserError(f"INIT_FROM: {no_run(where)}")
    trained = saved_config(where)
    vocabulary = vocabulary_of_run(trained, where)
    # A run that has begun keeps the name in its own configuration, with which it is compared.
    vocabulary = vocabulary if begun else inherited_vocabulary(vocabulary, where)
    settings = trained.values(training_root(trained))
    macros = {
        "ENCODING": label_in(trained),
        "VOCABULARY": vocabulary,
        "TRAIN_LENGTH": settings["train_length"],
        "BATCH_SIZE": settings["batch_size"],
    }
    # A file cannot set a macro twice, and the model may use TRAIN_LENGTH.
    return macros, {str(saved): trained.text(MODEL), f"{saved} (inherited)": _text(macros)}


def check_unchanged(file: str, workdir: str) -> None:
    """Raise UserError if the run in `workdir` has started with a file of pairs of other content.

    Training could not resume, because the saved position belongs to that content.
    """
    if not workdir or newest_config(workdir) is None:
        return
    started_with = saved_config(workdir).macro("PAIRS_SHA256")
    if started_with not in (None, file_sha256(file)):
        raise UserError(
            f"{file} has changed since the run in {workdir} started (its SHA-256 was "
            f"{str(started_with)[:12]}...): restore the file, or choose another --workdir"
        )


def of_pairs(bound: Mapping[Key, Any], macros: Mapping[str, Any], workdir: str) -> dict[str, str]:
    """Return the macros that follow from a file of pairs, as gin text keyed by the file.

    Args:
      bound: The values that gin files and the command line give.
      macros: The macros that the run inherits.

    Raises:
      UserError: The file cannot be read or has too few pairs, or the run does not read it.
    """
    file = str(bound[_PAIRS])
    if bound.get(_DATA) != _PAIRS_DATA:
        raise UserError(
            f"the pairs in {file} would not be read, because another gin file chooses the "
            "examples: omit that file, or the pairs"
        )
    vocabulary = str(bound.get(_VOCABULARY) or macros.get("VOCABULARY") or "bytes")
    if workdir:  # a run that has begun has a copy
        vocabulary = found_vocabulary(vocabulary, read_inputs(workdir), workdir)
    pairs = Pairs(file=file, target_length=2, vocabulary=vocabulary)
    splits_of(pairs)
    found = {"PAIRS_SHA256": file_sha256(file), "TARGET_LENGTH": longest_target(pairs) + 1}
    return {file: _text(found)}


def _text(macros: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in macros.items())
