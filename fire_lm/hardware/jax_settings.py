"""JAX's settings that change results, so that variables of the environment cannot set them.

JAX reads each of its settings from a variable of the environment, which a shell or an image may
have set for other programs.
"""

from __future__ import annotations

import os
import sys

import jax

from fire_lm.errors import UserError

# Random numbers, data types and derivatives: all runs have these values, which are JAX's defaults.
_FIXED = {
    "jax_enable_x64": False,
    "jax_explicit_x64_dtypes": "warn",
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_legacy_prng_key": "allow",
    "jax_enable_custom_prng": False,
    "jax_high_dynamic_range_gumbel": False,
    "jax_softmax_custom_jvp": False,
    "jax_use_direct_linearize": True,
    "jax_allow_f16_reductions": True,
}
# The only one of these settings that users choose; see `check_same_precision`.
_PRECISION = "JAX_DEFAULT_MATMUL_PRECISION"


def ignore_variables() -> None:
    """Undo the effect of variables of the environment on results, and print their names."""
    changed = []
    for name, value in _FIXED.items():
        if name.upper() in os.environ and hasattr(jax.config, name):
            before = getattr(jax.config, name)
            jax.config.update(name, value)
            if getattr(jax.config, name) != before:
                changed.append(f"{name.upper()}={os.environ[name.upper()]}")
    if changed:
        print(
            f"{' '.join(changed)} of the environment would change results and does not apply",
            file=sys.stderr,
        )


def precision() -> dict[str, str | None]:
    """Return the precision of matrix products that the environment sets, for a checkpoint."""
    return {_PRECISION: getattr(jax.config, _PRECISION.lower())}


def check_same_precision(saved: dict[str, object]) -> None:
    """Check that the precision of matrix products is that of a checkpoint.

    `saved` contains the result of `precision` when the checkpoint was saved; earlier versions did
    not save it.

    Raises:
      UserError: The precision has changed.
    """
    now = precision()[_PRECISION]
    before = saved.get(_PRECISION, now)
    if before != now:
        words = [f"{value}" if value else "unset" for value in (before, now)]
        raise UserError(
            f"{_PRECISION} is {words[1]}, but was {words[0]} when the checkpoint was saved: a "
            "resumed run would have other numbers\nset this variable of the environment as before"
        )
