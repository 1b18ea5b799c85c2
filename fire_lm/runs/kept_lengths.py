"""The lengths that a model keeps when a run at another length continues it.

Learned parameters are only meaningful relative to the length that they were trained with: FIRE's
threshold is a learned multiple of `init_L`, by default a quarter of the training length; ALiBi's
interpolation, the scalings of RoPE, and log n are relative to it. So a run that starts from another
one takes from it every value that would otherwise follow from its own TRAIN_LENGTH.

Nothing here depends on a particular encoding. `build_decoder.train_length` is the length that
encodings receive, and a class declares in `length_fields` which of its parameters replace a value
derived from it. Values that the user binds are not changed.
"""

from __future__ import annotations

from typing import Any

from fire_lm.config import Config
from fire_lm.config.bindings import Scoped
from fire_lm.config.syntax import Key, Macro

MODEL = "build_decoder"
_LENGTH = Key((), MODEL, "train_length")
_FOLLOWS = Macro("TRAIN_LENGTH")  # as configs/base.gin binds it


def open_lengths(config: Config) -> list[Key]:
    """Return the parameters of the model that follow from TRAIN_LENGTH, because nothing binds them.

    A binding on the command line counts as the user's, even if its value is `%TRAIN_LENGTH`.
    """
    found = []
    bindings = config.bindings
    for at in bindings.reach(MODEL):
        bound = bindings.bound(at)
        fields = getattr(bindings.configurables[at.name], "length_fields", ())
        found += [at.key(field) for field in fields if field not in bound]
    bound_length = bindings.bound(Scoped((), MODEL)).get(_LENGTH.parameter)
    if bound_length is None or (
        bound_length.node == _FOLLOWS and not bound_length.from_command_line
    ):
        found.append(_LENGTH)
    return found


def kept_lengths(config: Config, trained: Config) -> dict[Key, Any]:
    """Return the values that `config` takes from the configuration of the model it starts from.

    Values that are equal in both, and values that were also derived there, are omitted.
    """
    theirs, ours = (one.leaves(MODEL) for one in (trained, config))
    found = {}
    for key in open_lengths(config):
        _, value = theirs.get(key, ("", None))
        if value is not None and value != ours.get(key, ("", None))[1]:
            found[key] = value
    return found
