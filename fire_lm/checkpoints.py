"""Checkpoints of a run, a thin layer over Orbax (v0 API): state, place in the data, and facts.

`<workdir>/checkpoints/<step>/` holds `state/` (arrays, written asynchronously and sharded),
`position/` (one opaque file per process: where it is in the data) and `info/` (a small JSON). A
step becomes visible by an atomic rename once all of it is on disk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from fire_lm.errors import RunFailed, UserError


@dataclasses.dataclass(frozen=True)
class Checkpointing:
    """How often to save and what to keep; the last step of a run is always saved.

    Attributes:
      save_every: steps between checkpoints.
      keep_last: newest checkpoints kept.
      keep_every: checkpoints at multiples of this step are kept for good; None keeps none extra.
    """

    save_every: int = 1000
    keep_last: int = 3
    keep_every: int | None = None


class _PositionHandler(ocp.CheckpointHandler):
    """Writes this process's bytes into the step directory, before the step becomes visible."""

    def save(self, directory: epath.Path, args: PositionSave) -> None:
        (directory / _process_file()).write_bytes(args.item)

    def restore(self, directory: epath.Path, args: PositionRestore) -> bytes:
        del args
        return (directory / _process_file()).read_bytes()


def _process_file() -> str:
    return f"process_{jax.process_index():04d}_of_{jax.process_count():04d}"


@ocp.args.register_with_handler(_PositionHandler, for_save=True)
@dataclasses.dataclass
class PositionSave(ocp.args.CheckpointArgs):
    item: bytes


@ocp.args.register_with_handler(_PositionHandler, for_restore=True)
@dataclasses.dataclass
class PositionRestore(ocp.args.CheckpointArgs):
    pass


def split_run(run: str) -> tuple[str, int | None]:
    """`RUN[@STEP]` -> (run, step); a run whose name holds an @ needs an explicit step."""
    name, at, step = run.rpartition("@")
    if not at:
        return run, None
    if not step.isdigit():
        raise UserError(f"'{run}': after @ comes a step number, as in {name}@1000")
    return name, int(step)


def checkpoint_directory(workdir: str | epath.Path) -> epath.Path:
    path = epath.Path(workdir)  # absolute() would take gs:// for a local folder
    return (path if "://" in path.as_posix() else path.absolute()) / "checkpoints"


def available_steps(workdir: str | epath.Path) -> list[int]:
    """Steps of a run that are whole on disk, ascending."""
    directory = checkpoint_directory(workdir)
    return sorted(ocp.utils.checkpoint_steps(directory)) if directory.is_dir() else []


def choose_step(workdir: str | epath.Path, step: int | None) -> int:
    """`step` if the run has it, its newest for None; else an error that lists what there is."""
    steps = available_steps(workdir)
    if not steps:
        raise UserError(
            f"{workdir} holds no complete checkpoint: is it the --workdir of a pretrain run?"
        )
    if step is None:
        return steps[-1]
    if step not in steps:
        raise UserError(f"{workdir} has no checkpoint {step}, only {steps}")
    return step


class Checkpoints:
    """The checkpoints of a run that writes."""

    def __init__(self, workdir: str | epath.Path, policy: Checkpointing):
        self.workdir = workdir
        self._manager = ocp.CheckpointManager(
            checkpoint_directory(workdir),
            options=ocp.CheckpointManagerOptions(
                create=True,
                max_to_keep=policy.keep_last,
                keep_period=policy.keep_every,
                cleanup_tmp_directories=True,
            ),
        )

    def save(self, step: int, state: Any, position: bytes, info: Mapping[str, Any]) -> None:
        """Starts an asynchronous save; `state` may be donated once this returns."""
        with self._storage_failures(f"saving checkpoint {step}"):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    position=PositionSave(position),
                    info=ocp.args.JsonSave(dict(info)),
                ),
            )

    def restore(self, step: int, like: Any) -> tuple[Any, bytes, dict[str, Any]]:
        """(state, position, info) of a step; `like` has the shapes and shardings of the state."""
        positions = checkpoint_directory(self.workdir) / str(step) / "position"
        written = [path.name for path in positions.glob("process_*")]
        if written and _process_file() not in written:
            raise UserError(
                f"checkpoint {step} of {self.workdir} was written by another number of processes: "
                f"their places in the data do not fit the {jax.process_count()} of now"
            )
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(like),
                    position=PositionRestore(),
                    info=ocp.args.JsonRestore(),
                ),
            )
        except Exception as error:  # Orbax raises bare Exceptions for damaged files
            raise _unreadable(self.workdir, step, error) from error
        return restored.state, restored.position, restored.info

    def reached_preemption(self, step: int) -> bool:
        """Whether the processes of this job have agreed to stop after `step`."""
        return self._manager.reached_preemption(step)

    def close(self) -> None:
        """Returns once every started save is on disk."""
        with self._storage_failures("finishing the last checkpoint"):
            self._manager.close()

    @contextlib.contextmanager
    def _storage_failures(self, doing: str) -> Iterator[None]:
        """Disk full, bucket refusal and the like, also of a save that was started earlier."""
        try:
            yield
        except Exception as error:
            raise RunFailed(f"{doing} in {self.workdir} failed: {_first_line(error)}") from error


def restore_params(
    workdir: str | epath.Path,
    step: int,
    like: Any,
    *,
    allow_missing: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
    foreign: Callable[[str], bool] = lambda path: False,
) -> tuple[Any, list[str]]:
    """Parameters alone of a run's step, whatever its optimizer was.

    Leaves that the checkpoint lacks, or has left over, are errors unless a pattern (as in
    `layers/position/*`) lists them. `like` holds the shapes and shardings wanted. Paths that are
    `foreign` mean something else in the checkpoint, even under the same name: never read.

    Returns:
      The parameters (missing leaves as they are in `like`), and the paths that were missing.
    """
    directory = checkpoint_directory(workdir) / str(step) / "state"
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        stored = _leaves(reader.metadata(directory).item_metadata.tree["params"])
    except Exception as error:
        raise _unreadable(workdir, step, error) from error
    want = _leaves(like)
    have = {path: leaf for path, leaf in stored.items() if not foreign(path)}
    missing = [path for path in want if path not in have]
    unused = [path for path in stored if path not in want or foreign(path)]
    _refuse(f"{workdir}@{step}", missing, unused, allow_missing, allow_unused)
    for path in set(want) & set(have):
        if tuple(have[path].shape) != tuple(want[path].shape):
            raise UserError(
                f"'{path}' has shape {tuple(have[path].shape)} in {workdir}@{step}, "
                f"but {tuple(want[path].shape)} in this model"
            )
    wanted = {"params": _subtree(like, have)}
    restore = ocp.args.PyTreeRestore(
        item=wanted,
        restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
        partial_restore=True,
    )
    try:
        found = _leaves(reader.restore(directory, args=restore)["params"])
    except Exception as error:
        raise _unreadable(workdir, step, error) from error
    params = jax.tree_util.tree_map_with_path(lambda path, leaf: found.get(_name(path), leaf), like)
    return params, missing


def _refuse(
    checkpoint: str,
    missing: Sequence[str],
    unused: Sequence[str],
    allow_missing: Sequence[str],
    allow_unused: Sequence[str],
) -> None:
    """UserError with the whole command that allows what is missing and left over."""
    problems, flags = [], []
    for paths, allowed, problem, setting in (
        (missing, allow_missing, "lacks", "init_allow_missing"),
        (unused, allow_unused, "has left over", "init_allow_unused"),
    ):
        refused = [p for p in paths if not any(fnmatch.fnmatch(p, a) for a in allowed)]
        if refused:
            problems.append(f"{problem} {', '.join(refused)}")
            folders = dict.fromkeys(_folder(path) for path in refused)
            patterns = [*allowed, *folders]
            flags.append(f"'--gin.pretrain.{setting}={_as_gin(patterns)}'")
    if problems:
        raise UserError(
            f"checkpoint {checkpoint} {' and '.join(problems)}\n"
            f"if that is meant, add {' '.join(flags)}"
        )


def _folder(path: str) -> str:
    """The pattern of an encoding's parameters, which come and go together; else the path."""
    match = re.match(r"(.*/)?position(_\d+)?/", path)
    return f"{match[0]}*" if match else path


def _as_gin(patterns: Sequence[str]) -> str:
    return patterns[0] if len(patterns) == 1 else repr(list(patterns)).replace("'", '"')


def _unreadable(workdir: str | epath.Path, step: int, error: Exception) -> RunFailed:
    # Orbax abandons its other reads, whose clean-up may print tracebacks over our message.
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: (
        None if "Event loop is closed" in str(found.exc_value) else before(found)
    )
    return RunFailed(
        f"checkpoint {step} of {workdir} does not fit or cannot be read: {_first_line(error)}\n"
        "another model needs another --workdir; if it is damaged, move "
        f"{checkpoint_directory(workdir) / str(step)} away to go on from the one before it"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _leaves(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _subtree(tree: Mapping[str, Any], paths: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The nested dict reduced to the leaves that `paths` names."""
    kept = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if inner := _subtree(value, paths, f"{path}/"):
                kept[key] = inner
        elif path in paths:
            kept[key] = value
    return kept
