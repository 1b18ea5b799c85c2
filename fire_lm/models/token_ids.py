"""The check that every token id has a row of the embedding.

JAX does not report other ids: inside a program, an id that is too large reads NaN, and a negative
id reads another row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fire_lm.errors import UserError


def check_token_ids(ids: Any, vocab_size: int, what: str) -> None:
    """Raise UserError unless all ids, integers of any shape, are from 0 to `vocab_size` - 1.

    `vocab_size` is the number of rows of the embedding. `what` describes the ids in the message.
    """
    ids = np.asarray(ids)
    if not ids.size:
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0:
        raise UserError(f"{what} contains the token id {least}: it must be 0 or more")
    if most >= vocab_size:
        raise UserError(
            f"{what} contains the token id {most}, but the model's embedding has only {vocab_size} "
            f"rows (VOCAB_SIZE): it must have {most + 1} or more, or the text must be tokenised "
            "with the model's vocabulary"
        )
