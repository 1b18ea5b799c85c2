"""The configuration of a training run, including the model that a finetuning run inherits.

The gin files of a finetuning run specify only the task and the training settings. The model, the
name of its encoding and the vocabulary come from the run in INIT_FROM. They are read before the gin
files, so that the gin files and the command line can override them.
"""

from __future__ import annotations

import argparse

from fire_lm.checkpoints import split_run
from fire_lm.config import Config, stated
from fire_lm.config.files import SHIPPED
from fire_lm.config.syntax import Key
from fire_lm.errors import UserError
from fire_lm.experiment import finetunes, label_in, load_config, search_folders
from fire_lm.runs.kept_lengths import MODEL
from fire_lm.runs.saved import newest_config, no_run, saved_config, vocabulary_of_run

_SOURCE = Key((), "", "INIT_FROM")
_MACROS = "configs/model.gin"  # describes a model by macros if no run provides one


def training_config(arguments: argparse.Namespace, workdir: str) -> Config:
    """Return the configuration that the arguments describe, for pretraining or finetuning.

    Raises:
      UserError: The configuration cannot be read, or INIT_FROM contains no run.
    """
    given = (arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    first = None
    if finetunes(*given):
        bound = stated(*given[:2], search_folders(given[2]))
        first = inherited(str(bound.get(_SOURCE) or ""), workdir)
    return load_config(*given, arguments.imports, first)


def inherited(source: str, workdir: str) -> dict[str, str]:
    """Return the model that a finetuning run inherits, as gin text keyed by its file.

    The model is that of the run in `workdir` if this run has already started, and otherwise that of
    `source`. If this run has not started and `source` is empty, the text describes a model by
    macros.

    Raises:
      UserError: `source` contains no run, or its configuration cannot be loaded.
    """
    begun = bool(workdir) and newest_config(workdir) is not None
    where = workdir if begun else split_run(source)[0]
    if not where:
        return {_MACROS: (SHIPPED / _MACROS).read_text()}
    saved = newest_config(where)
    if saved is None:
        raise UserError(f"INIT_FROM: {no_run(where)}")
    trained = saved_config(where)
    names = {"ENCODING": label_in(trained), "VOCABULARY": vocabulary_of_run(trained, where)}
    lines = [f"{name} = {value!r}\n" for name, value in names.items()]
    return {str(saved): trained.text(MODEL) + "".join(lines)}
