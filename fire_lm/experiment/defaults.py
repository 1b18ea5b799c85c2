"""Macros of an evaluation whose values follow from the finetuned run if no file sets them."""

from __future__ import annotations

from fire_lm.config import Bindings, Statement
from fire_lm.data import TextToText


def default_truncation(bindings: Bindings) -> list[Statement]:
    """Return the binding of TRUNCATION if it is needed but not set, and otherwise [].

    Its value is the one that the finetuned run bound directly to the truncation of its examples or,
    if there is no such binding, the default of that parameter.
    """
    names = ("TextToText.truncation", "Pairs.truncation")
    bound = [statement for statement in bindings.statements if str(statement.key) in names]
    following = [
        statement
        for key, statement in bindings.winning.items()
        if str(key) in names and statement.value == "%TRUNCATION"
    ]
    if not following or "TRUNCATION" in bindings.macros:
        return []
    of_run = [statement for statement in bound if statement.value != "%TRUNCATION"]
    value = of_run[-1].value if of_run else TextToText.truncation
    return [Statement.from_value("TRUNCATION", value, (of_run or following)[-1].where)]


def default_lengths(bindings: Bindings) -> list[Statement]:
    """Return the binding of EVAL_LENGTHS if an evaluation needs it and it is not set, otherwise [].

    The only length is that at which token 0, the input and the answer take a row of training. It
    needs the macros TRAIN_LENGTH and TARGET_LENGTH, which a finetuned run has.
    """
    bound = [
        statement for statement in bindings.statements if str(statement.key) == "evaluate.lengths"
    ]
    if not bound or bound[-1].value != "%EVAL_LENGTHS" or "EVAL_LENGTHS" in bindings.macros:
        return []
    macros = [bindings.macros.get(name) for name in ("TRAIN_LENGTH", "TARGET_LENGTH")]
    row, target = (bindings.value(statement) if statement else None for statement in macros)
    if not (isinstance(row, int | float) and isinstance(target, int | float)):
        return []
    return [Statement.from_value("EVAL_LENGTHS", (row - target - 1,), bound[-1].where)]
