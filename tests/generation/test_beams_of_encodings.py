"""Beam search with what encodings add to the caches: log gates, wide keys, sinks, mixed heads."""

import numpy as np
import pytest
from sample_decoders import LENGTHS, NEW, PROMPT, TOKENS, configured, filled, logprobs

from fire_lm.generation import Beam, generate


@pytest.mark.ci
@pytest.mark.parametrize("name", ["fox", "pope", "rope_ssmax", "fire_sink", "dape_fire"])
def test_every_beam_scores_as_a_full_pass_does(name):
    """Ragged prompts, hypotheses that change their parents, and texts beyond the training length.

    The log-probabilities of another hypothesis differ, so caches of a wrong parent would be seen.
    """
    model = configured(name)
    params = filled(model)
    prompts = TOKENS[:, :PROMPT]
    found = generate(model, params, prompts, LENGTHS, new_tokens=NEW, method=Beam(3))
    expected = [logprobs(model, params, found.tokens_BKT[:, k]) for k in range(3)]
    np.testing.assert_allclose(found.logprobs_BKT, np.stack(expected, axis=1), atol=1e-5)
    assert np.max(np.abs(found.logprobs_BKT[:, 0] - expected[1])) > 1e-2
