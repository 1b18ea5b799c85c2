"""Functions that restore only the parameters of a checkpoint, for evaluation and INIT_FROM.

They are the parameters that the optimizer means to be evaluated (evaluated.py), which need not be
those that are trained. Their names must match those of the model. This module also checks whether a
checkpoint matches a model without reading the checkpoint's arrays.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm.checkpoints.evaluated import arrays_read, evaluation_arrays
from fire_lm.checkpoints.fingerprints import changed_arrays
from fire_lm.checkpoints.layout import checkpoint_directory, misfit, unreadable
from fire_lm.errors import RunFailed, UserError
from fire_lm.sharding import leaves_by_path, path_name


class Allowed(NamedTuple):
    """How the parameters of a model may differ from those of a checkpoint.

    Attributes:
      missing: Patterns of paths that the checkpoint may lack, such as `layers/position/*`.
      unused: Patterns of paths that the model need not use.
      foreign: Returns whether a path has another meaning in the checkpoint, even if the name is the
        same; such a path is never read.
      configurable: The name by which gin binds the two lists, for the error message.
    """

    missing: Sequence[str] = ()
    unused: Sequence[str] = ()
    foreign: Callable[[str], bool] = lambda path: False
    configurable: str = "pretrain"


NO_DIFFERENCE = Allowed()


def restore_params(
    workdir: str | epath.Path, step: int, like: Any, allowed: Allowed = NO_DIFFERENCE
) -> tuple[Any, list[str]]:
    """Restore only the parameters to evaluate of a checkpoint, whatever optimizer the run used.

    They are those of `evaluated.evaluation_params`, such as an average. A parameter that the
    checkpoint lacks, or that the model does not use, is an error unless it is `allowed`. `like`
    contains the requested shapes and shardings.

    Returns:
      The parameters, with leaves of `like` in place of missing parameters, and the paths of the
      missing parameters.

    Raises:
      UserError: A parameter is missing, unused or of another shape.
      RunFailed: The checkpoint is damaged or cannot be read.
    """
    tree, missing = check_params(workdir, step, like, allowed)
    directory = checkpoint_directory(workdir) / str(step) / "state"
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        leaves = leaves_by_path(like)
        wanted = _wanted(leaves_by_path(tree), {x: leaves[x] for x in leaves if x not in missing})
        item = jax.tree_util.tree_map_with_path(
            lambda path, _: wanted.get(path_name(path), ocp.PLACEHOLDER), tree
        )
        restore = ocp.args.PyTreeRestore(
            item=item,
            restore_args=ocp.checkpoint_utils.construct_restore_args(item),
            partial_restore=True,
        )
        read = leaves_by_path(reader.restore(directory, args=restore))
    except Exception as error:
        raise unreadable(workdir, step, error) from error
    restored = {path: read[path] for path in wanted}
    if changed := changed_arrays(directory.parent, restored):
        raise RunFailed(
            f"checkpoint {step} of {workdir} is damaged: {changed[0]} has changed since it was "
            "saved\n"
            "choose another step"
        )
    trained, state = (_below(restored, prefix) for prefix in (_PARAMS, _STATE))
    chosen = _evaluated(trained, state) if state else trained
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: chosen.get(path_name(path), leaf), like
    )
    return params, missing


def check_params(
    workdir: str | epath.Path, step: int, like: Any, allowed: Allowed = NO_DIFFERENCE
) -> tuple[Any, list[str]]:
    """Perform the same checks as `restore_params` without reading any array.

    Returns:
      The tree of the metadata of all arrays of the checkpoint, and the paths of the missing
      parameters.

    Raises:
      UserError, RunFailed: See `restore_params`.
    """
    tree = _stored_tree(workdir, step)
    stored = leaves_by_path(tree["params"])
    want = leaves_by_path(like)
    have = {path: leaf for path, leaf in stored.items() if not allowed.foreign(path)}
    missing = [path for path in want if path not in have]
    unused = [path for path in stored if path not in want or allowed.foreign(path)]
    _refuse(f"{workdir}@{step}", missing, unused, allowed)
    for path in (path for path in want if path in have):
        if tuple(have[path].shape) != tuple(want[path].shape):
            raise UserError(
                f"'{path}' has shape {tuple(have[path].shape)} in {workdir}@{step}, "
                f"but {tuple(want[path].shape)} in this model"
            )
    return tree, missing


def array_paths(workdir: str | epath.Path, step: int) -> list[str]:
    """Return the paths of all arrays of a checkpoint.

    Raises:
      RunFailed: The checkpoint cannot be read.
    """
    return list(leaves_by_path(_stored_tree(workdir, step)))


def check_arrays(workdir: str | epath.Path, step: int, like: Any) -> None:
    """Compare a checkpoint's arrays with those of the state `like`, without reading the arrays.

    Raises:
      RunFailed: The checkpoint cannot be read, or an array has another shape or data type, or
        exists only in the checkpoint or only in the state. The message describes the first of these
        arrays.
    """
    have, want = leaves_by_path(_stored_tree(workdir, step)), leaves_by_path(like)
    for path in [*want, *have]:
        stored, ours = (_described(leaves.get(path)) for leaves in (have, want))
        if stored != ours:
            difference = ValueError(
                f"'{path}' is {stored} in the checkpoint, but {ours} in the model"
            )
            raise misfit(workdir, step, difference)


def _stored_tree(workdir: str | epath.Path, step: int) -> Any:
    """Return the tree of the shapes and data types of a checkpoint's arrays.

    Raises:
      RunFailed: The checkpoint cannot be read, or has no parameters.
    """
    folder = checkpoint_directory(workdir) / str(step)
    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    try:
        tree = reader.metadata(folder / "state").item_metadata.tree
        tree["params"]
    except Exception as error:
        raise unreadable(workdir, step, error) from error
    return tree


def _described(leaf: Any) -> str:
    return "missing" if leaf is None else f"{np.dtype(leaf.dtype)} {list(leaf.shape)}"


def _refuse(
    checkpoint: str, missing: Sequence[str], unused: Sequence[str], allowed: Allowed
) -> None:
    """Raise UserError for missing or unused paths that are not allowed.

    The message suggests flags that would allow these paths.
    """
    problems, flags = [], []
    for paths, known, problem, setting in (
        (missing, allowed.missing, "lacks parameters", "init_allow_missing"),
        (unused, allowed.unused, "has unused parameters", "init_allow_unused"),
    ):
        refused = [path for path in paths if not any(fnmatch.fnmatch(path, a) for a in known)]
        if refused:
            problems.append(f"{problem} ({', '.join(refused)})")
            folders = dict.fromkeys(_folder(path) for path in refused)
            patterns = [*known, *folders]
            flags.append(f"'--gin.{allowed.configurable}.{setting}={_as_gin(patterns)}'")
    if problems:
        raise UserError(
            f"checkpoint {checkpoint} {' and '.join(problems)}\n"
            f"if this is intended, add {' '.join(flags)}"
        )


def _folder(path: str) -> str:
    """Return a pattern that matches all parameters of the encoding to which a path belongs.

    If the path belongs to no encoding, the path itself is returned.
    """
    match = re.match(r"(.*/)?position(_\d+)?/", path)
    return f"{match[0]}*" if match else path


def _as_gin(patterns: Sequence[str]) -> str:
    return patterns[0] if len(patterns) == 1 else repr(list(patterns)).replace("'", '"')


def _evaluated(trained: dict[str, jax.Array], state: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return `evaluation_arrays`, sharded like the trained parameters."""
    shardings = {name: getattr(leaf, "sharding", None) for name, leaf in trained.items()}
    sharded = all(isinstance(layout, NamedSharding) for layout in shardings.values())
    program = jax.jit(evaluation_arrays, out_shardings=shardings if sharded else None)
    return program(trained, state)


def _wanted(stored: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays of a checkpoint that evaluating the parameters `like` needs, by path.

    Arrays of the optimizer's state that belong to a parameter have the sharding of the parameter in
    `like` and the data type in the checkpoint; the others are replicated.
    """
    wanted = {f"{_PARAMS}{path}": leaf for path, leaf in like.items()}
    for path in arrays_read(_below(stored, _STATE), like):
        leaf = stored[f"{_STATE}{path}"]
        owners = [name for name in like if path.endswith(f"/{name}")]
        owner = max(owners, key=len) if owners else next(iter(like), "")
        sharding = getattr(like.get(owner), "sharding", None)
        if not owners and isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        wanted[f"{_STATE}{path}"] = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return wanted


_PARAMS, _STATE = "params/", "opt_state/"  # path prefixes in a training state


def _below(leaves: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        path.removeprefix(prefix): leaf for path, leaf in leaves.items() if path.startswith(prefix)
    }
