"""All properties, how one is checked, and the explanation of one that an encoding lacks."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable

import jax

from fire_lm.encoding_properties import in_models, of_hooks
from fire_lm.positions import PositionalEncoding

Check = Callable[[PositionalEncoding], None]

PROPERTIES: tuple[Check, ...] = (
    of_hooks.has_a_hook_for_its_parameters,
    of_hooks.has_the_documented_size,
    of_hooks.has_finite_values_far_out,
    of_hooks.has_all_bits_of_positions,
    of_hooks.has_values_between_integer_positions,
    of_hooks.has_finite_gradients_at_distance_0,
    of_hooks.has_the_declared_invariance,
    of_hooks.has_the_declared_use_of_the_context_length,
    of_hooks.has_equal_decode_rows,
    of_hooks.has_equal_values_in_packed_documents,
    of_hooks.has_no_hidden_state,
    of_hooks.has_a_place_on_every_mesh,
    of_hooks.has_interpolation_beyond_training_alone,
    in_models.has_no_leaks,
    in_models.has_no_leaks_in_decoding,
    in_models.has_parameters_of_its_own_in_every_layer,
    in_models.has_the_common_form,
    in_models.has_explicit_dtypes_and_axes,
    in_models.has_the_same_values_in_blocks,
)


def holds(check: Check, encoding: PositionalEncoding) -> None:
    """Run a check while JAX may convert silently, because only one property concerns that."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        check(encoding)


def lacks(check: Check, encoding: PositionalEncoding) -> Exception | None:
    """Return the error with which a check fails, or None if the encoding has the property."""
    try:
        holds(check, encoding)
    except Exception as error:  # JAX and the encoding may raise anything
        return error
    return None


def explain(
    name: str, check: Check, encoding: PositionalEncoding, error: Exception, for_traceback: str
) -> str:
    """Explain which property is missing, where in the encoding's own file, and what to do.

    `for_traceback` is the flag that shows the traceback.
    """
    source = inspect.getfile(type(encoding))
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == source
    ]
    where = f"{os.path.relpath(source)}:{lines[-1]}: " if lines else ""
    said = next((line.strip() for line in str(error).split("\n") if line.strip()), "")
    return (
        f"{name} lacks the property {check.__name__}\n"
        f"{where}{said or type(error).__name__}\n\n"
        f"{inspect.getdoc(check)}\n\n"
        f"The rules: docs/add_an_encoding.md. For the traceback: {for_traceback}\n"
    )
