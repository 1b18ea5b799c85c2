"""The experiment of a training run, including what a finetuning run inherits.

The gin files of a finetuning run specify only the task and the training settings. The model, the
name of its encoding, the vocabulary, and the length and number of rows in a batch come from the run
in INIT_FROM. They are read before the gin files, so that the gin files and the command line can
override them. The same holds for what follows from a file of pairs (PAIRS).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fire_lm.checkpoints import split_run
from fire_lm.data import Pairs
from fire_lm.data.pairs import file_sha256, longest_target, splits_of
from fire_lm.errors import UserError
from fire_lm.experiment import SHIPPED, Experiment, GinText, Statements, kind_of, resolve
from fire_lm.runs.inputs import read_inputs
from fire_lm.runs.saved import Saved, saved_run, vocabulary_of_run
from fire_lm.training import trained_length

_MACROS = "configs/model.gin"  # describes a model by macros if no run provides one


@dataclasses.dataclass(frozen=True)
class Source:
    """A run from which finetuning starts.

    Attributes:
      saved: Its configuration.
      vocabulary: The name that a run which starts from it gives to its vocabulary.
    """

    saved: Saved
    vocabulary: str


def read_source(folder: str) -> Source:
    """Read the run in `folder`; see `saved_run` and `vocabulary_of_run` for errors."""
    saved = saved_run(folder, "INIT_FROM")
    name = vocabulary_of_run(saved.experiment, saved.workdir)
    return Source(saved, read_inputs(saved.workdir).inherited_vocabulary(name))


def training_experiment(
    stated: Statements,
    imports: Sequence[str] = (),
    begun: Saved | None = None,
    source: Source | None = None,
) -> Experiment:
    """Return the experiment that gin files and bindings describe, for pretraining or finetuning.

    Args:
      begun: The saved configuration of the run, if it has already started.
      source: The run in INIT_FROM, if it has already been read.

    Raises:
      UserError: The configuration or a file of pairs cannot be read, or INIT_FROM contains no run.
    """
    if kind_of(stated) == "pretrain":
        return resolve(stated, imports)
    if not (begun or source) and (folder := split_run(stated_source(stated))[0]):
        source = read_source(folder)
    macros, texts = _inherited(source, begun)
    if file := stated.value("PAIRS"):
        texts = [*texts, _of_pairs(str(file), stated, macros, begun)]
    return resolve(stated.preceded_by(texts), imports)


def stated_source(stated: Statements) -> str:
    """Return the `RUN[@STEP]` from which finetuning is to start, or "" if none is stated."""
    value = stated.value("finetune.init_from")
    while isinstance(value, str) and value.startswith("%"):
        value = stated.value(value.removeprefix("%"))
    return str(value or "")


def _inherited(source: Source | None, begun: Saved | None) -> tuple[dict[str, Any], list[GinText]]:
    """Return the macros that a finetuning run inherits, and its model with them as gin texts.

    Both are those of the run itself if it has already started, and otherwise those of `source`. If
    both are None, there are no macros, and the text describes a model by macros.
    """
    if begun is not None:  # it keeps the name in its own configuration, with which it is compared
        saved, vocabulary = begun, vocabulary_of_run(begun.experiment, begun.workdir)
    elif source is not None:
        saved, vocabulary = source.saved, source.vocabulary
    else:
        return {}, [GinText(_MACROS, (SHIPPED / _MACROS).read_text())]
    trained = saved.experiment
    settings = trained.values(trained.kind)
    tokens = settings["batch_size"] * settings["train_length"]
    length = trained_length(settings)
    macros = {
        "ENCODING": trained.label,
        "VOCABULARY": vocabulary,
        "TRAIN_LENGTH": length,
        "BATCH_SIZE": tokens // length,
    }
    # A file cannot set a macro twice, and the model may use TRAIN_LENGTH.
    return macros, [
        GinText(str(saved.path), trained.text("build_decoder")),
        GinText(f"{saved.path} (inherited)", _text(macros)),
    ]


def _of_pairs(
    file: str, stated: Statements, macros: Mapping[str, Any], begun: Saved | None
) -> GinText:
    """Return the macros that follow from a file of pairs as gin text.

    `macros` contains the macros that the run inherits.

    Raises:
      UserError: The file cannot be read or has too few pairs, the run does not read it, or it has
        changed since the run started: the saved position belongs to the content of that time.
    """
    sha256 = file_sha256(file)
    expected = begun.experiment.macro("PAIRS_SHA256") if begun else None
    if begun and expected not in (None, sha256):
        raise UserError(
            f"{file} has changed since the run in {begun.workdir} started (its SHA-256 was "
            f"{str(expected)[:12]}...): restore the file, or choose another --workdir"
        )
    if stated.value("finetune.data") != "@Pairs()":
        raise UserError(
            f"the pairs in {file} would not be read, because another gin file chooses the "
            "examples: omit that file, or the pairs"
        )
    vocabulary = str(stated.value("VOCABULARY") or macros.get("VOCABULARY") or "bytes")
    if begun:  # it has a copy
        vocabulary = read_inputs(begun.workdir).located_vocabulary(vocabulary)
    pairs = Pairs(file=file, target_length=2, vocabulary=vocabulary)
    if stated.value("Pairs.validation_share") is None:  # the run itself checks another share
        splits_of(pairs)
    return GinText(
        file, _text({"PAIRS_SHA256": sha256, "TARGET_LENGTH": longest_target(pairs) + 1})
    )


def _text(macros: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in macros.items())
