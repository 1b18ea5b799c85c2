"""What a run's folder says about the run: its configuration, its model, and its best steps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from etils import epath

from fire_lm import models
from fire_lm.config import Config
from fire_lm.data import Data, Synthetic
from fire_lm.errors import UserError, first_line
from fire_lm.experiment import load_config
from fire_lm.results import ranked_steps, read_own
from fire_lm.storage import children, create_text, make_folder, place


def save_config(config: Config, workdir: str | epath.Path) -> epath.Path:
    """Write config.gin, or the first free of config_1.gin, config_2.gin, ...; return its path.

    The folder is created if it is absent. No file is ever overwritten, and a crash leaves no
    incomplete one. Only one process of a job may call this.
    """
    folder = place(workdir)
    try:
        make_folder(folder)
        names = itertools.chain(["config.gin"], (f"config_{i}.gin" for i in itertools.count(1)))
        return next(folder / name for name in names if create_text(folder / name, config.text()))
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"cannot write the configuration in {workdir}: {reason}") from None


def newest_config(
    workdir: str | epath.Path, inside: Sequence[epath.Path] | None = None
) -> epath.Path | None:
    """Return the path of the configuration of a run's latest start, or None if there is none.

    `inside` is the content of the folder, if it is known.

    Raises:
      RunFailed: The folder cannot be listed, which does not mean that it holds no run.
    """
    found = {
        int(match[1] or 0): path
        for path in (children(place(workdir)) if inside is None else inside)
        if (match := re.fullmatch(r"config(?:_(\d+))?\.gin", path.name))
    }
    return found[max(found)] if found else None


def saved_config(workdir: str | epath.Path) -> Config:
    """Return the configuration of a run's latest start.

    Raises:
      UserError: The configuration cannot be loaded, because it is damaged or was written by another
        version of the code.
    """
    saved = newest_config(workdir)
    if saved is None:
        raise UserError(f"{workdir} holds no run (no config.gin)")
    try:
        config = load_config([str(saved)]).as_saved()
        config.check_complete("build_decoder")
    except UserError as error:
        raise damaged(saved, str(error).removeprefix("--gin_file: ")) from error
    return config


def damaged(saved: epath.Path, why: str) -> UserError:
    """Return the error for a saved configuration that cannot be loaded."""
    problem = why.partition("\n")[0].partition("; give one")[0].rstrip(".")
    where = "" if str(saved) in problem else f"{saved}: "
    return UserError(
        f"{where}{problem}\nif the file is damaged, move it away: the command that trained the run "
        "writes a new one"
    )


def text_of_run(config: Config, workdir: str | epath.Path) -> Data:
    """Return the text that a run of this configuration was trained on.

    Raises:
      UserError: The run was trained on a synthetic task, which has no text.
    """
    data = config.call("pretrain").data
    if isinstance(data, Synthetic):
        raise UserError(
            f"{workdir} was trained on the task {data.title}, not on text: `fire-lm evaluate` "
            "measures its accuracy"
        )
    found: Data = data
    return found


def model_of_run(workdir: str) -> models.Decoder:
    """Return the model of the run that INIT_FROM names, without parameters."""
    if newest_config(workdir) is None:
        raise UserError(f"INIT_FROM: {workdir} holds no run (no config.gin)")
    return saved_config(workdir).call("build_decoder")


def ranked(workdir: epath.Path, encoding: str) -> list[int]:
    """Return the steps of a run that sweeps have scored, best first."""
    own = read_own(workdir, encoding)
    return ranked_steps(own.losses, own.texts.of)
