"""RoPE's scalings against the papers' formulas in float64, and against Hugging Face's code.

The numbers from that code are stored (golden_numbers.py), because the project does not depend on
transformers or torch.
"""

import dataclasses
import inspect
import math
from typing import Any

import golden_numbers as golden
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm import positions
from fire_lm.errors import UserError
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import (
    ClippedRoPE,
    DynamicNTK,
    Llama3,
    NTKAware,
    PositionInterpolation,
    RopeScaling,
    YaRN,
)

# width, base, training length: a test model, Llama 2 and Llama 3.1
MODELS = [(16, 10_000.0, 64), (128, 10_000.0, 4096), (128, 500_000.0, 8192)]
on_every_model = pytest.mark.parametrize("width, base, length", MODELS)
FIXED = {
    PositionInterpolation(4.0): "pi-4x",
    NTKAware(4.0): "ntk-4x",
    YaRN(4.0): "yarn-4x",
    YaRN(4.0, ramp="paper"): "yarn_paper-4x",
    Llama3(): "llama3-8x",
}
CLIPPED = ClippedRoPE()
BY_INPUT = {
    PositionInterpolation(): "pi",
    NTKAware(): "ntk",
    YaRN(): "yarn",
    YaRN(ramp="paper"): "yarn_paper",
    DynamicNTK(): "dynamic_ntk",
}


def thetas(width: int, base: float) -> list[float]:
    return [base ** (-2 * k / width) for k in range(width // 2)]


def blend(width: int, base: float, length: int, s: float, kept: Any) -> list[float]:
    """Return (1 - kept) theta / s + kept theta, Eq. 13; `kept` is by pair index or by turns."""
    out = []
    for k, theta in enumerate(thetas(width, base)):
        share = min(1.0, max(0.0, kept(k, length * theta / (2 * math.pi))))
        out.append((1 - share) * theta / s + share * theta)
    return out


def yarn_code(width: int, base: float, length: int, s: float) -> list[float]:
    """Return YaRN's frequencies with the released code's ramp, by index between rounded ends."""
    pair = {
        turns: math.log(length / (turns * 2 * math.pi)) / math.log(base) * width / 2
        for turns in (32, 1)
    }
    first, last = max(0, math.floor(pair[32])), min(width - 1, math.ceil(pair[1]))
    return blend(width, base, length, s, lambda k, turns: 1 - (k - first) / (last - first))


def expected(scaling: RopeScaling, width: int, base: float, length: int, s: float) -> list[float]:
    """Return the frequencies for the factor s, formula by formula."""
    if isinstance(scaling, PositionInterpolation):
        return [theta / s for theta in thetas(width, base)]
    if isinstance(scaling, NTKAware | DynamicNTK):
        return thetas(width, base * s ** (width / (width - 2)))
    if isinstance(scaling, Llama3):
        return blend(width, base, length, s, lambda k, turns: (turns - 1) / (4 - 1))
    assert isinstance(scaling, YaRN)
    if scaling.ramp == "paper":
        return blend(width, base, length, s, lambda k, turns: (turns - 1) / (32 - 1))
    return yarn_code(width, base, length, s)


@on_every_model
@pytest.mark.parametrize("scaling", FIXED, ids=str)
def test_a_fixed_factor_gives_the_papers_frequencies(scaling, width, base, length):
    """They do not depend on the input's length, and only YaRN scales cos and sin."""
    ours, factor = scaling.frequencies(width, base, length, length)
    paper = expected(scaling, width, base, length, scaling.factor)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, paper, rtol=1e-12)
    assert not np.allclose(ours, expected(scaling, width, base, length, 2.0), rtol=1e-3)
    longer, _ = scaling.frequencies(width, base, length, 16 * length)
    np.testing.assert_array_equal(longer, ours)
    is_yarn = isinstance(scaling, YaRN)
    assert factor == (pytest.approx(0.1 * math.log(4) + 1, rel=1e-15) if is_yarn else 1.0)


@on_every_model
@pytest.mark.parametrize("scaling", BY_INPUT, ids=str)
def test_without_a_factor_the_input_decides(scaling, width, base, length):
    """At n = 6 L it equals a fixed factor of 6; up to the training length, it is exactly RoPE."""
    ours, factor = scaling.frequencies(width, base, length, 6 * length)
    np.testing.assert_allclose(ours, expected(scaling, width, base, length, 6.0), rtol=1e-12)
    assert (factor > 1) == isinstance(scaling, YaRN)
    plain, _ = PositionInterpolation(1.0).frequencies(width, base, length, length)
    np.testing.assert_allclose(plain, thetas(width, base), rtol=1e-15)
    for short in (1, length // 2, length):
        frequency, factor = scaling.frequencies(width, base, length, short)
        np.testing.assert_array_equal(frequency, plain)
        assert factor == 1.0


@pytest.mark.parametrize(
    "kind", [PositionInterpolation, NTKAware, YaRN, Llama3], ids=lambda k: k.label
)
def test_a_factor_of_1_is_exactly_rope(kind):
    for scaling in (kind(factor=1.0), kind(factor=1.0 + 1e-3)):
        rope, changed = (RoPE(2, 16, 64, 32, scaling=s) for s in (None, scaling))
        same = np.array_equal(rope.frequencies(999)[0], changed.frequencies(999)[0])
        assert same == (scaling.factor == 1.0)
        assert (changed.frequencies(999)[1] == 1.0) == (same or kind is not YaRN)


@on_every_model
def test_clipped_rope_fades_what_does_not_turn_in_training(width, base, length):
    ours, factor = CLIPPED.frequencies(width, base, length, 16 * length)
    slow = [k for k, theta in enumerate(thetas(width, base)) if 2 * math.pi / theta > length]
    assert len(slow) > 2 and factor == 1
    for k, theta in enumerate(thetas(width, base)):
        share = 1.0
        if k in slow:
            share = 0.5 * (1 + math.cos(math.pi * (k - slow[0]) / (len(slow) - 1)))
        assert ours[k] == pytest.approx(share * theta, abs=1e-12)
    assert ours[-1] == 0 and not CLIPPED.follows_input
    for few in (0, 1):  # pairs: one alone keeps its frequency
        short = 2 * math.pi * base ** (2 * (width // 2 - few) / width) * 0.99
        np.testing.assert_allclose(
            CLIPPED.frequencies(width, base, math.ceil(short), 9)[0], thetas(width, base)
        )


def test_ntk_keeps_the_fastest_and_divides_the_slowest_by_the_factor():
    for scaling in (NTKAware(4.0), DynamicNTK()):
        ours, _ = scaling.frequencies(128, 10_000.0, 2048, 4 * 2048)
        np.testing.assert_allclose(ours[[0, -1]], [1.0, thetas(128, 10_000.0)[-1] / 4], rtol=1e-13)
    assert NTKAware(4.0).frequencies(2, 10_000.0, 64, 64)[0] == [1.0]  # one pair is not scaled


def test_dynamic_ntk_stretches_by_what_exceeds_training():
    """s = f n / L - (f - 1)."""
    ours, _ = DynamicNTK(3.0).frequencies(64, 10_000.0, 2048, 2 * 2048)
    np.testing.assert_allclose(ours, expected(DynamicNTK(), 64, 10_000.0, 2048, 4.0), rtol=1e-12)


def test_yarns_paper_and_code_ramp_differently():
    """At 4 times 2048 tokens, the code's are up to 80% higher, and equal at the ramps' ends."""
    code, paper = (
        YaRN(4.0, ramp=ramp).frequencies(64, 10_000.0, 2048, 8192)[0] for ramp in ("code", "paper")
    )
    excess = code / paper - 1
    assert 0.79 < np.max(excess) < 0.81
    np.testing.assert_allclose(excess[[0, -1]], 0, atol=1e-15)


def test_yarns_code_interpolates_nothing_if_no_pair_turns_so_often():
    """The end of its ramp is then below 0; transformers gives the same frequencies."""
    ours, _ = YaRN(4.0, 64.0, 32.0).frequencies(16, 10_000.0, 40, 160)
    np.testing.assert_allclose(ours, thetas(16, 10_000.0), rtol=1e-12)


def test_llama3_reads_its_original_length_or_the_training_length():
    given = Llama3(original_length=8192).frequencies(128, 5e5, 131_072, 131_072)[0]
    np.testing.assert_array_equal(given, Llama3().frequencies(128, 5e5, 8192, 131_072)[0])
    assert np.any(given != Llama3().frequencies(128, 5e5, 131_072, 131_072)[0])


@pytest.mark.parametrize("length", [2, 6], ids=["shorter than a turn", "a turn"])
def test_training_lengths_under_one_turn_interpolate_all(length):
    """No pair makes a full turn; the first is excluded, since the rounded ramp begins with it."""
    for ramp in ("code", "paper"):
        ours, _ = YaRN(4.0, ramp=ramp).frequencies(16, 10_000.0, length, length)
        np.testing.assert_allclose(ours[1:], np.array(thetas(16, 10_000.0))[1:] / 4, rtol=1e-12)


def test_rope_turns_by_the_scaled_frequencies():
    """YaRN's factor multiplies cos and sin, thus logits by its square; partial RoPE is included."""
    scaling, length = YaRN(), 64
    rope = RoPE(2, 16, length, 32, rotary_fraction=0.5, scaling=scaling)
    q, k = np.random.default_rng(0).uniform(-1, 1, (2, 1, 30, 2, 16))
    pos = np.arange(30) + 8000
    frequency = np.array(yarn_code(8, 10_000.0, length, 8192 / length))
    factor = 0.1 * math.log(8192 / length) + 1
    ours = rope.rotate(
        {}, jnp.float32(q), jnp.float32(k), jnp.asarray(pos)[None], jnp.asarray(pos)[None], 8192
    )
    for rotated, x in zip(ours, (q, k), strict=True):
        turn = factor * np.exp(1j * pos[:, None] * frequency[None, :])[None, :, None, :]
        z = (x[..., :4] + 1j * x[..., 4:8]) * turn
        whole = np.concatenate([z.real, z.imag, x[..., 8:]], axis=-1)
        np.testing.assert_allclose(rotated, whole, rtol=0, atol=1e-5)
        z = z / factor
        broken = np.concatenate([z.real, z.imag, x[..., 8:]], axis=-1)
        assert np.max(np.abs(rotated - broken)) > 0.1


@pytest.mark.parametrize(
    "scaling, label", [*FIXED.items(), *BY_INPUT.items(), (CLIPPED, "clipped")]
)
def test_labels_of_result_tables(scaling, label):
    assert str(scaling) == label


def test_different_settings_have_different_labels():
    """The labels distinguish rows of a sweep."""
    labels = {
        "yarn-4x-beta_fast=16",
        "yarn_paper-4x-beta_slow=2",
        "llama3-4x",
        "llama3-8x-original_length=8192",
        "dynamic_ntk-2x",
        "pi-1x",
    }
    assert labels == {
        str(scaling)
        for scaling in (
            YaRN(4.0, beta_fast=16.0),
            YaRN(4.0, beta_slow=2.0, ramp="paper"),
            Llama3(4.0),
            Llama3(original_length=8192),
            DynamicNTK(2.0),
            PositionInterpolation(1.0),
        )
    }


@pytest.mark.parametrize(
    "kind, settings, match",
    [
        *((kind, {"factor": 0.5}, rf"{kind.__name__}\.factor is 0.5") for kind in
          (PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3)),
        (YaRN, {"factor": math.inf}, "YaRN.factor"),
        (YaRN, {"factor": math.nan}, "YaRN.factor"),
        (YaRN, {"beta_fast": 1.0}, "beta_fast must be above beta_slow"),
        (YaRN, {"beta_slow": 0.0}, "beta_slow must be above 0"),
        (Llama3, {"high_frequency_factor": 0.5}, "must be above low_frequency_factor"),
        (Llama3, {"original_length": 0}, "Llama3.original_length"),
        (ClippedRoPE, {"factor": 2.0}, "ClippedRoPE.factor is 2: it has no effect"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(kind, settings, match):
    with pytest.raises(UserError, match=match):
        kind(**settings)


def test_every_scaling_can_be_named_in_gin_and_is_a_value():
    """They are frozen and hashable, and so are encodings with them; the base class is abstract."""
    found = {kind for kind in positions.configurables().values() if issubclass(kind, RopeScaling)}
    assert found == {PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3, ClippedRoPE}
    assert inspect.isabstract(RopeScaling)
    assert RoPE.evaluation_fields == ("scaling",)
    ropes = {RoPE(2, 16, 64, 32, scaling=YaRN(4.0)), RoPE(2, 16, 64, 32, scaling=YaRN(4.0))}
    assert len(ropes) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        YaRN(4.0).factor = 2.0  # type: ignore[misc]


HUGGING_FACE: list[tuple[str, dict[str, float], RopeScaling | None]] = [
    ("default", {}, None),
    ("linear", {"factor": 4.0}, PositionInterpolation(4.0)),
    ("dynamic", {"factor": 1.0}, DynamicNTK()),
    ("dynamic", {"factor": 3.0}, DynamicNTK(3.0)),
    ("yarn", {"factor": 4.0}, YaRN(4.0)),
    ("yarn", {"factor": 32.0, "beta_fast": 16.0, "beta_slow": 2.0}, YaRN(32.0, 16.0, 2.0)),
    ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, Llama3()),
]


def hugging_face(
    name: str, settings: dict[str, float], width: int, base: float, length: int, context: int
) -> tuple[list[float], float]:
    """Return the frequencies and the attention factor from transformers."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = {"rope_type": name, "rope_theta": base, **settings}
    if name in ("yarn", "llama3"):
        parameters["original_max_position_embeddings"] = length
    config = LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        max_position_embeddings=length,
        rope_parameters=parameters,
    )
    compute = ROPE_INIT_FUNCTIONS.get(name, LlamaRotaryEmbedding.compute_default_rope_parameters)
    frequencies, factor = compute(config, device="cpu", seq_len=context)
    # A float32 has nine digits.
    return [float(f"{number:.9g}") for number in frequencies.tolist()], float(factor)


def case(name: str, settings: dict[str, float], *model: float) -> str:
    return " ".join(
        [name, *(f"{key}={value:g}" for key, value in settings.items()), *map(str, model)]
    )


def contexts(length: int) -> tuple[int, int]:
    """Return half and twice the training length."""
    return length // 2, 2 * length


@on_every_model
@pytest.mark.parametrize("name, settings, scaling", HUGGING_FACE)
def test_hugging_face_has_the_same_frequencies(name, settings, scaling, width, base, length):
    """They agree with stored numbers from its code up to its float32."""
    kept = golden.of("transformers_rope.json")
    rope = RoPE(2, width, length, 2 * width, base=base, scaling=scaling)
    for context in contexts(length):
        theirs, their_factor = kept[case(name, settings, width, base, length, context)]
        ours, factor = rope.frequencies(context)
        np.testing.assert_allclose(ours, theirs, rtol=3e-6)
        assert factor == pytest.approx(their_factor, rel=1e-12)


@pytest.mark.interop("torch", "transformers")
def test_hugging_face_still_has_these_frequencies():
    """UPDATE_GOLDEN=1, with torch and transformers installed, writes what the test above reads."""
    found = {
        case(name, settings, *model, context): [*hugging_face(name, settings, *model, context)]
        for name, settings, _ in HUGGING_FACE
        for model in MODELS
        for context in contexts(model[2])
    }
    kept = golden.updated("transformers_rope.json", found, "torch", "transformers")
    assert found.keys() == kept.keys()
    for key, (frequencies, factor) in found.items():
        np.testing.assert_allclose(frequencies, kept[key][0], rtol=3e-6, err_msg=key)
        assert factor == pytest.approx(kept[key][1], rel=1e-12)
