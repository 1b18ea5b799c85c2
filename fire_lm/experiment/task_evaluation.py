"""The settings that an evaluation of a finetuned run on its task inherits from the run."""

from __future__ import annotations

from fire_lm.config.bindings import Bindings
from fire_lm.config.syntax import Key, Macro, Scalar, Statement
from fire_lm.data import TextToText

_MACRO = Key((), "", "TRUNCATION")
_BOUND = tuple(Key((), examples, "truncation") for examples in ("TextToText", "Pairs"))


def default_truncation(bindings: Bindings) -> list[Statement]:
    """Return the binding of TRUNCATION if it is needed but not set, and otherwise [].

    Its value is the one that the finetuned run bound directly to the truncation of its examples or,
    if there is no such binding, the default of that parameter.
    """
    asked = next((bindings.winning[key] for key in _BOUND if key in bindings.winning), None)
    if asked is None or asked.node != Macro("TRUNCATION") or "TRUNCATION" in bindings.macros:
        return []
    of_run = [one for one in bindings.statements if one.key in _BOUND and one.node != asked.node]
    default = TextToText.truncation
    node = of_run[-1].node if of_run else Scalar(default, default)
    return [Statement(_MACRO, node, (of_run or [asked])[-1].where, False)]


_LENGTHS = Key((), "evaluate", "lengths")


def default_lengths(bindings: Bindings) -> list[Statement]:
    """Return the binding of EVAL_LENGTHS if an evaluation needs it and it is not set, otherwise [].

    The only length is that at which token 0, the input and the answer take a row of training. It
    needs the macros TRAIN_LENGTH and TARGET_LENGTH, which a finetuned run has.
    """
    asked = bindings.winning.get(_LENGTHS)
    if asked is None or asked.node != Macro("EVAL_LENGTHS") or "EVAL_LENGTHS" in bindings.macros:
        return []
    bound = [bindings.macros.get(name) for name in ("TRAIN_LENGTH", "TARGET_LENGTH")]
    row, target = (one and bindings.expand(one) for one in bound)
    if not (isinstance(row, Scalar) and isinstance(target, Scalar)):
        return []
    length = row.value - target.value - 1
    return [
        Statement(Key((), "", "EVAL_LENGTHS"), (Scalar(length, str(length)),), asked.where, False)
    ]
