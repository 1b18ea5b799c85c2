"""Every place where token ids enter a model refuses ids without a row of the embedding."""

from typing import Any

import jax
import numpy as np
import pytest
from sample_decoders import configured

from fire_lm.data import ScoringText
from fire_lm.errors import UserError
from fire_lm.generation import generate
from fire_lm.measures.continuation_scores import continuation_scores
from fire_lm.measures.probes import attention_scores
from fire_lm.measures.protocols import Windows
from fire_lm.measures.scoring import row_losses
from fire_lm.models import Decoder, check_token_ids
from fire_lm.sharding import MeshShape, make_mesh


def generated(model: Decoder, ids: np.ndarray) -> Any:
    return generate(model, {}, ids, [ids.shape[1]], new_tokens=1)


def ranked(model: Decoder, ids: np.ndarray) -> Any:
    row = ids[0].tolist()
    for context, continuation in ((row[:-1], row[-1:]), (row[-1:], row[:-1])):
        list(continuation_scores(model, {}, [(context, continuation)], make_mesh(MeshShape())))


def scored(model: Decoder, ids: np.ndarray) -> Any:
    text = ScoringText(ids, np.ones_like(ids), 0, 0.0)
    return row_losses(
        model,
        {},
        text,
        Windows(np.zeros(1, int), np.zeros(1, int), ids.shape[1]),
        64,
        make_mesh(MeshShape()),
        "run",
    )


def probed(model: Decoder, ids: np.ndarray) -> Any:
    return attention_scores(model, {}, ids[0], run="", encoding="", variant="", step=0)


@pytest.mark.parametrize("entrance", [generated, ranked, scored, probed])
@pytest.mark.parametrize("wrong", [32, -1, 2**32 + 1])
def test_an_id_without_a_row_is_refused(entrance, wrong):
    """2**32 + 1 would be 1 as int32."""
    ids = np.array([[0, 5, 7, wrong]])
    told = "-1: it must be 0" if wrong < 0 else f"{wrong}, but .* has only 32 rows .VOCAB_SIZE."
    with pytest.raises(UserError, match=f"the token id {told}"):
        entrance(configured("nope"), ids)


def test_ids_with_a_row_are_accepted():
    check_token_ids(np.array([[0, 31]]), 32, "the text")
    check_token_ids([], 32, "the text")
    check_token_ids(jax.numpy.arange(32), 32, "the text")
