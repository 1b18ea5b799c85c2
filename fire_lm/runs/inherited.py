"""The configuration of a run that trains, in which a finetuning has the model of another run.

A finetuning says which task it learns and how; the model, the name of its encoding and the
vocabulary are those of the run that INIT_FROM names, and stand before the gin files, so that these
and the command line change what they bind.
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
from fire_lm.runs.saved import newest_config, saved_config, vocabulary_of_run

_SOURCE = Key((), "", "INIT_FROM")
_MACROS = "configs/model.gin"  # how macros describe a model, where no run does


def training_config(arguments: argparse.Namespace, workdir: str) -> Config:
    """The configuration that the arguments describe, a pretraining's or a finetuning's.

    Raises:
      UserError: it cannot be read, or INIT_FROM holds no run to finetune.
    """
    given = (arguments.gin_file, arguments.bindings, arguments.gin_search_paths)
    first = None
    if finetunes(*given):
        bound = stated(*given[:2], search_folders(given[2]))
        first = inherited(str(bound.get(_SOURCE) or ""), workdir)
    return load_config(*given, arguments.imports, first)


def inherited(source: str, workdir: str) -> dict[str, str]:
    """The model of the run in `workdir`, if it has begun, else of `source`, as gin text by its
    name; without either, how macros describe one."""
    begun = bool(workdir) and newest_config(workdir) is not None
    where = workdir if begun else split_run(source)[0]
    if not where:
        return {_MACROS: (SHIPPED / _MACROS).read_text()}
    saved = newest_config(where)
    if saved is None:
        raise UserError(f"INIT_FROM: {where} holds no run (no config.gin)")
    trained = saved_config(where)
    names = {"ENCODING": label_in(trained), "VOCABULARY": vocabulary_of_run(trained, where)}
    lines = [f"{name} = {value!r}\n" for name, value in names.items()]
    return {str(saved): trained.text(MODEL) + "".join(lines)}
