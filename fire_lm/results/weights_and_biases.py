"""Weights & Biases as an experiment tracker, by its optional library `wandb`."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from etils import epath

from fire_lm import storage
from fire_lm.errors import UserError
from fire_lm.storage.presence import children

_ID = "wandb_id"
_FINISH_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class WandB:
    """A run of Weights & Biases for a run directory, which every start continues.

    Its id is kept in the run directory. Steps that a start repeats are dropped by W&B, which has
    them already: a run that resumes with the same settings repeats them bit for bit.

    Attributes:
      project: The project of the run.
      entity: The user or team; '' is the default of the account.
      name: The name of the run; '' is the name of its directory.
      group: The group of the run, such as the name of a grid; '' for none.
      mode: 'online', 'offline' (for `wandb sync` later; local run directories only), or '' for the
        environment's choice (`WANDB_MODE`).
    """

    project: str = "fire_lm"
    entity: str = ""
    name: str = ""
    group: str = ""
    mode: str = ""

    def __post_init__(self) -> None:
        if self.mode not in ("", "online", "offline"):
            raise UserError(
                f"WandB.mode is {self.mode!r}: it must be 'online', 'offline' or '' (WANDB_MODE)"
            )

    @property
    def _mode(self) -> str:
        return self.mode or os.environ.get("WANDB_MODE", "online")

    def check(self) -> None:
        """Raise UserError if `wandb` is not installed."""
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                "pretrain.trackers has WandB, but wandb is not installed: run "
                "pip install 'fire-lm[wandb]'"
            )

    def open(self, workdir: str, resume_step: int) -> _WandBLog:
        """Open the run; see `Tracker.open`.

        Raises:
          UserError: The mode is offline and the run directory is in a bucket.
          wandb.errors.Error: There is no account on this machine, or W&B cannot be reached.
        """
        import wandb

        bucket = storage.in_bucket(workdir)
        if bucket and self._mode == "offline":
            raise UserError(
                f"WandB.mode is 'offline', but {workdir} is in a bucket: choose 'online'"
            )
        path = epath.Path(workdir)
        run = wandb.init(
            project=self.project,
            entity=self.entity or None,
            name=self.name or path.name,
            group=self.group or None,
            id=_kept_id(path),
            resume="allow",
            config=_settings(path),
            mode=self._mode,
            dir=tempfile.mkdtemp(prefix="wandb_") if bucket else workdir,
            settings=wandb.Settings(init_timeout=60, x_disable_stats=True, console="off"),
        )
        return _WandBLog(run)


class _WandBLog:
    """An open run of W&B, whose library uploads in a process of its own."""

    def __init__(self, run: Any):
        self._run = run

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Do nothing, because the library uploads continuously."""

    def close(self) -> None:
        """Finish the run. A slow upload must not delay a preempted job, whose last save waits."""
        upload = threading.Thread(target=self._run.finish, daemon=True)
        upload.start()
        upload.join(_FINISH_SECONDS)
        if upload.is_alive():
            raise TimeoutError(f"the upload takes more than {_FINISH_SECONDS:.0f} s: not complete")


def _kept_id(workdir: epath.Path) -> str:
    """Return the id in the run directory, which the first start writes."""
    path = workdir / _ID
    storage.create_text(path, uuid.uuid4().hex[:12])
    return (storage.read_bytes(path) or b"").decode().strip()


def _settings(workdir: epath.Path) -> dict[str, str]:
    """Return the bindings of the newest resolved configuration, as text."""
    configs = [path for path in children(workdir) if re.fullmatch(r"config(_\d+)?\.gin", path.name)]
    newest = max(configs, key=lambda path: (len(path.name), path.name), default=None)
    text = (storage.read_bytes(newest) or b"").decode() if newest else ""
    bindings = (line.partition(" = ") for line in text.split("\n") if not line.startswith("#"))
    return {name: value for name, equals, value in bindings if equals}
