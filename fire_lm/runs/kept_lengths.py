"""The lengths that a model keeps when a run at another length continues its training.

Learned parameters are meaningful only relative to the length at which they were trained. FIRE's
threshold is a learned multiple of `init_L`, which is a quarter of the training length by default.
The interpolation of ALiBi, the scalings of RoPE, and log-n scaling are also relative to the
training length. A run that starts from another run therefore takes over every value that would
otherwise follow from its own TRAIN_LENGTH.

This module does not depend on any particular encoding. `build_decoder.train_length` is the length
that encodings receive, and each class declares in `length_fields` the parameters that replace a
value derived from this length. Values that the user binds are never changed.
"""

from __future__ import annotations

from typing import Any

from fire_lm.config import Config
from fire_lm.config.bindings import Scoped
from fire_lm.config.syntax import Key, Macro
from fire_lm.experiment import training_root
from fire_lm.models import at_longest_length

MODEL = "build_decoder"
_LENGTH = Key((), MODEL, "train_length")
_FOLLOWS = Macro("TRAIN_LENGTH")  # the value to which configs/base.gin binds the length


def open_lengths(config: Config) -> list[Key]:
    """Return the parameters of the model whose values follow from TRAIN_LENGTH.

    Bound parameters are excluded, except `build_decoder.train_length` if a gin file binds it to
    `%TRAIN_LENGTH`.
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
    """Return the values that `config` takes from `trained`, the configuration of its source run.

    Values that are identical in both configurations are omitted, as are values that the source run
    also derived.
    """
    theirs, ours = (one.leaves(MODEL) for one in (trained, config))
    found = {}
    for key in open_lengths(config):
        _, value = theirs.get(key, ("", None))
        if value is not None and value != ours.get(key, ("", None))[1]:
            found[key] = value
    return found


def with_longest_length(config: Config, trained: Config) -> Config:
    """Return `config` with the training length on which changes at evaluation are based.

    `config` differs from `trained`, the configuration of the run, by changes to the model that
    apply only at evaluation; see `at_longest_length`.
    """
    model = trained.call(MODEL)
    own = int(trained.values(training_root(trained))["train_length"])
    longest = at_longest_length(model, own).encodings[0].train_length
    if longest == model.encodings[0].train_length:
        return config
    return config.with_values({_LENGTH: longest}, "the run's training length")
