"""Restoring only the parameters of a checkpoint, with strict names, for evaluation and INIT_FROM.

This module also checks whether a checkpoint fits a model without reading its arrays.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from fire_lm.checkpoints.fingerprints import changed_arrays
from fire_lm.checkpoints.layout import checkpoint_directory, misfit, unreadable
from fire_lm.errors import RunFailed, UserError


def restore_params(
    workdir: str | epath.Path,
    step: int,
    like: Any,
    *,
    allow_missing: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
    foreign: Callable[[str], bool] = lambda path: False,
) -> tuple[Any, list[str]]:
    """Restore only the parameters of a run's step, whatever its optimizer was.

    Leaves that are missing or unused in the checkpoint are errors unless a pattern (such as
    `layers/position/*`) matches them. `like` holds the requested shapes and shardings. Paths that
    are `foreign` have another meaning in the checkpoint, even with the same name, and are never
    read.

    Returns:
      The parameters (with the leaves of `like` for missing ones), and the missing paths.
    """
    have, missing = check_params(
        workdir,
        step,
        like,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
        foreign=foreign,
    )
    directory = checkpoint_directory(workdir) / str(step) / "state"
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    wanted = {"params": _subtree(like, have)}
    restore = ocp.args.PyTreeRestore(
        item=wanted,
        restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
        partial_restore=True,
    )
    try:
        restored = {"params": reader.restore(directory, args=restore)["params"]}
    except Exception as error:
        raise unreadable(workdir, step, error) from error
    if changed := changed_arrays(directory.parent, restored):
        raise RunFailed(
            f"checkpoint {step} of {workdir} is damaged: {changed[0]} is not what was saved\n"
            "choose another step"
        )
    found = _leaves(restored["params"])
    params = jax.tree_util.tree_map_with_path(lambda path, leaf: found.get(_name(path), leaf), like)
    return params, missing


def check_params(
    workdir: str | epath.Path,
    step: int,
    like: Any,
    *,
    allow_missing: Sequence[str] = (),
    allow_unused: Sequence[str] = (),
    foreign: Callable[[str], bool] = lambda path: False,
) -> tuple[dict[str, Any], list[str]]:
    """Refuse what `restore_params` refuses, without reading any array.

    Returns:
      The metadata of the arrays to read, by path, and the missing paths.
    """
    directory = checkpoint_directory(workdir) / str(step) / "state"
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        stored = _leaves(_metadata(reader, directory)["params"])
    except Exception as error:
        raise unreadable(workdir, step, error) from error
    want = _leaves(like)
    have = {path: leaf for path, leaf in stored.items() if not foreign(path)}
    missing = [path for path in want if path not in have]
    unused = [path for path in stored if path not in want or foreign(path)]
    _refuse(f"{workdir}@{step}", missing, unused, allow_missing, allow_unused)
    for path in (path for path in want if path in have):
        if tuple(have[path].shape) != tuple(want[path].shape):
            raise UserError(
                f"'{path}' has shape {tuple(have[path].shape)} in {workdir}@{step}, "
                f"but {tuple(want[path].shape)} in this model"
            )
    return have, missing


def check_arrays(workdir: str | epath.Path, step: int, like: Any) -> None:
    """Compare a checkpoint's arrays with those of the state `like`, without reading them.

    Raises:
      RunFailed: An array has another shape or type, or exists on one side only; the message names
        the first such array.
    """
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        have = _leaves(_metadata(reader, checkpoint_directory(workdir) / str(step) / "state"))
    except Exception as error:
        raise unreadable(workdir, step, error) from error
    want = _leaves(like)
    for path in [*want, *have]:
        stored, ours = (_described(leaves.get(path)) for leaves in (have, want))
        if stored != ours:
            difference = ValueError(
                f"'{path}' is {stored} in the checkpoint, but {ours} in the model"
            )
            raise misfit(workdir, step, difference)


def _metadata(reader: ocp.Checkpointer, directory: epath.Path) -> Any:
    """Return the tree of the arrays' shapes and types."""
    return reader.metadata(directory).item_metadata.tree


def _described(leaf: Any) -> str:
    return "missing" if leaf is None else f"{np.dtype(leaf.dtype)} {list(leaf.shape)}"


def _refuse(
    checkpoint: str,
    missing: Sequence[str],
    unused: Sequence[str],
    allow_missing: Sequence[str],
    allow_unused: Sequence[str],
) -> None:
    """Raise UserError for missing and unused paths that are not allowed; suggest flags for them."""
    problems, flags = [], []
    for paths, allowed, problem, setting in (
        (missing, allow_missing, "lacks", "init_allow_missing"),
        (unused, allow_unused, "has unused", "init_allow_unused"),
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
            f"if that is intended, add {' '.join(flags)}"
        )


def _folder(path: str) -> str:
    """Return a pattern for all of an encoding's parameters, or the path of another parameter."""
    match = re.match(r"(.*/)?position(_\d+)?/", path)
    return f"{match[0]}*" if match else path


def _as_gin(patterns: Sequence[str]) -> str:
    return patterns[0] if len(patterns) == 1 else repr(list(patterns)).replace("'", '"')


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _leaves(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _subtree(tree: Mapping[str, Any], paths: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the nested dict reduced to the leaves that `paths` names."""
    kept = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if inner := _subtree(value, paths, f"{path}/"):
                kept[key] = inner
        elif path in paths:
            kept[key] = value
    return kept
