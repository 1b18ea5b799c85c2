"""Turns: what gin describes, what is refused, and the kinds of layer as a table."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from sample_decoders import shapes_of

from fire_lm.attention import Mask, Tokens, seen
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import (
    Decoder,
    Layers,
    Mixer,
    ModelSize,
    Turn,
    build_decoder,
    changes,
    encoding_names,
    layer_rows,
    variant,
)
from fire_lm.models.layer_table import receptive_field
from fire_lm.models.mixers import Attention
from fire_lm.models.segments import keys_under
from fire_lm.positions.fire import FIRE
from fire_lm.positions.learned import Learned
from fire_lm.positions.log_n import LogN
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.sinusoidal import Sinusoidal

SIZE = ModelSize(4, hidden_size=32, num_heads=4, head_dim=8, mlp_size=64, init_std=0.3)
RUN = "configs/runs/quickstart.gin"
SWAN = (
    *("POSITION = [@local/Layers(), @global/Layers()]", "size_tiny.num_layers = 4"),
    *("local/Layers.encoding = @RoPE", "local/Layers.window = 16", "local/Layers.count = 3"),
    *(
        "local/RoPE.base = 500000",
        "global/Layers.encoding = @NoPE",
        "global/Layers.log_n = @LogN()",
    ),
)


def build(*position, **settings) -> Decoder:
    return build_decoder(SIZE, position if len(position) > 1 else position[0], 32, 16, **settings)


def test_gin_describes_turns_and_reads_them_again(tmp_path):
    config = load_experiment([RUN], SWAN)
    model = config.model
    local, last = model.turns[0], model.turns[3]
    assert model.turns[:3] == (local,) * 3 and local.encoding.base == 500_000
    assert (local.window, local.log_n, last.window, last.log_n) == (16, None, None, LogN())
    saved = tmp_path / "saved.gin"
    saved.write_text(config.text())
    assert load_experiment([str(saved)]).model == model


def test_turns_have_a_name_in_tables():
    assert load_experiment([RUN], SWAN).label == ("3xrope_base_500k-window-16+nope-log_n-LogN")
    plain = ["POSITION = [@Layers(), @NoPE]", "Layers.encoding = @FIRE", "Layers.chunk = 8"]
    assert load_experiment([RUN], plain).label == "fire-chunk-8+nope"


def test_a_model_without_options_is_as_before():
    assert build(RoPE, NoPE) == build(Layers(RoPE), Layers(NoPE))
    assert build(RoPE, RoPE, RoPE, NoPE) == build(Layers(RoPE, count=3), NoPE)
    one = build(RoPE, log_n=LogN())
    assert one.turns == (Turn(one.encodings[0], log_n=LogN()),)


def test_the_log_n_of_a_turn_comes_first():
    clipped = LogN(clipped=True)
    model = build(Layers(RoPE, log_n=clipped), NoPE, log_n=LogN())
    assert [turn.log_n for turn in model.turns] == [clipped, LogN()]


@dataclasses.dataclass(frozen=True)
class Still(Mixer):
    """A mixer that does nothing."""

    width: int = 1


STILL = Layers(NoPE, mixer=Still())


@dataclasses.dataclass(frozen=True)
class Both(Mixer):
    """A mixer that contains another mixer."""

    first: Mixer = Still()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Layers(RoPE, window=0), "window is 0: it must be a positive integer"),
        (lambda: Layers(RoPE, chunk=-1), "chunk is -1: it must be a positive integer"),
        (lambda: Layers(RoPE, count=0), "Layers.count is 0: it must be 1 or more"),
        (lambda: Layers(NoPE, mixer=Still(), window=2), "window = 2 has no effect on .* Still"),
        (lambda: build(Layers(RoPE, mixer=Still())), "RoPE has no effect on layers with Still"),
        (lambda: build(STILL, RoPE, attention_dropout=0.1), "_dropout has no effect .* Still"),
        (lambda: build(STILL, log_n=LogN()), "build_decoder.log_n has no effect on any layer"),
        (lambda: build(Layers(RoPE, count=3)), "describes 3 alternating layers.* layers, 4"),
        (lambda: build_decoder(SIZE, (), 32, 16), "describes 0 alternating layers"),
        (lambda: build(Learned, NoPE, share_position=True), "Learned acts on the embedding.*alter"),
        (lambda: build(Sinusoidal, NoPE, share_position=True), "Sinusoidal acts on the embedding"),
        (lambda: build(Layers(RoPE, log_n=LogN(on="bias")), FIRE), "no bias to scale .RoPE."),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_a_field_that_is_added_to_a_turn_or_a_mixer_is_noticed():
    @dataclasses.dataclass(frozen=True)
    class Stretched(Turn):
        stretch: int = 1

    def model(stretch: int = 1, **options) -> Decoder:
        turns = (Stretched(build(RoPE).encodings[0], stretch=stretch, **options),)
        return build(RoPE).clone(turns=turns)

    assert changes(model(), model()) == {}
    assert changes(model(), model(stretch=2)) == {"stretch": (1, 2)}
    assert changes(model(mixer=Still()), model(mixer=Still(2))) == {"mixer.width": (1, 2)}
    inner = changes(model(mixer=Both()), model(mixer=Both(Still(2))))
    assert inner == {"mixer.first.width": (1, 2)}
    assert changes(model(), model(window=4)) == {"window": (None, 4)}
    with pytest.raises(UserError, match=r"stretch 1 -> 2(.|\n)* only log_n, "):
        variant(model(), model(stretch=2))
    with pytest.raises(UserError, match="mixer Attention -> Still"):
        variant(model(), model(mixer=Still()))


def test_layers_of_one_encoding_may_share_an_embedding():
    turns = build(Layers(Sinusoidal, window=4), Layers(Sinusoidal, count=3)).turns
    assert [turn.window for turn in turns] == [4, None, None, None]


def test_several_turns_name_the_one_that_changed():
    old, new = build(Layers(RoPE, window=4), NoPE), build(Layers(RoPE, window=8), NoPE)
    assert changes(old, new) == {"turn[0].window": (4, 8)}
    assert variant(build(RoPE, NoPE), build(RoPE, NoPE, log_n=LogN())) == "log_n"
    one = build(RoPE, Layers(NoPE, log_n=LogN()))
    assert variant(build(RoPE, NoPE), one) == "turn[1]:log_n"


def test_log_n_of_all_layers_that_can_have_it_has_one_name():
    """Layers whose mixer ignores log n neither change nor may be changed."""
    mixed = (RoPE, Layers(NoPE, mixer=Mixer()))
    assert variant(build(*mixed), build(*mixed, log_n=LogN())) == "log_n"
    assert variant(build(RoPE, NoPE), build(Layers(RoPE, log_n=LogN()), NoPE)) == "turn[0]:log_n"
    with pytest.raises(UserError) as refused:
        variant(build(*mixed), build(RoPE, RoPE))
    assert "turn[0].log_n" in str(refused.value) and "turn[1].log_n" not in str(refused.value)


def test_another_mixer_is_part_of_the_name_of_an_encoding():
    assert encoding_names(build(Layers(NoPE, mixer=Still()), RoPE)) == "NoPE in Still, RoPE"


def test_layers_that_see_later_tokens_cannot_generate():
    model = build(RoPE)
    model = model.clone(turns=(dataclasses.replace(model.turns[0], causal=False),))
    with pytest.raises(UserError, match="layers that see later tokens cannot generate text"):
        model.prefill(jnp.ones((1, 2), jnp.int32), jnp.arange(2)[None], jnp.array([2]), 4)


MASKS = {
    "window": [Mask(window=3)] * 3,
    "chunk": [Mask(chunk=4)] * 3,
    "both": [Mask(window=3), Mask(chunk=4), Mask(window=2, chunk=6)],
    "chunks": [Mask(chunk=4), Mask(chunk=6)],
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_the_receptive_field_is_what_masks_let_through(masks):
    tokens = Tokens(jnp.arange(96)[None])
    reached = np.eye(96, dtype=bool)
    for mask in masks:
        reached = np.asarray(seen(tokens, tokens, mask))[0] @ reached
    assert receptive_field(masks) == max(i - np.argmax(row) for i, row in enumerate(reached)) + 1
    assert receptive_field([*masks, Mask()]) is None


def test_windows_of_encoders_reach_both_ways():
    masks = [Mask(causal=False, window=4), Mask(causal=False, window=3)]
    tokens = Tokens(jnp.arange(32)[None])
    first, second = (np.asarray(seen(tokens, tokens, mask))[0] for mask in masks)
    assert receptive_field(masks) == (second @ first)[16].sum() == 11
    keys = [Attention().keys_per_token(mask, 32, head_dim=8) for mask in masks]
    assert keys == [first[16].sum(), second[16].sum()] == [7, 5]
    assert receptive_field([*masks, Mask(causal=False, chunk=4)]) is None


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window, chunk", [(None, None), (3, None), (None, 4), (3, 4)])
def test_keys_are_counted_as_the_mask_lets_them_through(causal, window, chunk):
    mask = Mask(causal, window, chunk)
    segment = jnp.asarray([[1] * 7 + [2] * 9, [1] * 16])
    place = jnp.asarray([[*range(7), *range(9)], [*range(16)]])
    tokens = Tokens(place, segment)
    counted = np.sum(seen(tokens, tokens, mask), axis=2)
    np.testing.assert_array_equal(keys_under(mask, place, segment), counted)


def test_the_table_has_a_row_for_each_kind_of_layer():
    local = Layers(functools.partial(RoPE, base=5e5), window=3)
    model = build(local, Layers(NoPE, log_n=LogN(clipped=True)))
    (first, second) = layer_rows(model, shapes_of(model))
    assert first[:4] == ["0, 2", "RoPE (base 500000.0)", "window 3", "all tokens"]
    assert second[:3] == ["1, 3", "NoPE", "log_n-clipped"] and first[4] == second[4]
    assert layer_rows(build(RoPE), shapes_of(build(RoPE))) == []
