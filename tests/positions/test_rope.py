"""RoPE against its definition as a product of complex numbers, in float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fire_lm.errors import UserError
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import PositionInterpolation

SIZE = {"num_heads": 3, "head_dim": 16, "train_length": 64, "hidden_size": 48}
HEAD_DIM, BASE = SIZE["head_dim"], 500.0
# Lengths from position 0, and blocks of queries far out.
BLOCKS = [(0, 1), (0, 2), (0, 17), (0, 512), (8192 - 17, 17), (131_072 - 512, 512)]


def turned(x: np.ndarray, pos: np.ndarray, layout: str, width: int = HEAD_DIM) -> np.ndarray:
    """Multiply pair k, as a complex number, by e^(i pos base^(-2k/width)); return `[T, N, H]`."""
    a, b = {
        "half": (np.arange(width // 2), np.arange(width // 2, width)),
        "interleaved": (np.arange(0, width, 2), np.arange(1, width, 2)),
    }[layout]
    angle = np.asarray(pos, np.float64)[:, None] / BASE ** (np.arange(width // 2) / (width / 2))
    z = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angle)[:, None, :]
    out = np.array(x)
    out[..., a], out[..., b] = z.real, z.imag
    return out


def content(length: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array]:
    """Return queries and keys `[1, length, N, H]` within +-1."""
    shape = (2, 1, length, SIZE["num_heads"], HEAD_DIM)
    q, k = np.random.default_rng(length).uniform(-1, 1, shape)
    return jnp.asarray(q, dtype), jnp.asarray(k, dtype)


def rotate(rope: RoPE, q: jax.Array, k: jax.Array, q_pos: Any, k_pos: Any) -> Any:
    q_pos, k_pos = jnp.asarray(q_pos)[None], jnp.asarray(k_pos)[None]
    return compiled(rope, q, k, q_pos, k_pos)


@functools.partial(jax.jit, static_argnums=0)  # faster than operation by operation
def compiled(rope: RoPE, q: Any, k: Any, q_pos: Any, k_pos: Any) -> Any:
    return rope.rotate({}, q, k, q_pos, k_pos, 131_072)


@pytest.mark.parametrize("layout, other", [("half", "interleaved"), ("interleaved", "half")])
@pytest.mark.parametrize(
    "fraction, width, start, length",
    [*((1.0, 16, *block) for block in BLOCKS), (0.5, 8, *BLOCKS[-1]), (0.125, 2, *BLOCKS[2])],
)
def test_rotation_is_multiplication_by_complex_numbers(
    layout, other, fraction, width, start, length
):
    """Queries and keys turn by their own positions; partial RoPE turns only the first dims."""
    rope = RoPE(**SIZE, base=BASE, layout=layout, rotary_fraction=fraction)
    q, k = content(length)
    q_pos, k_pos = start + np.arange(length), np.arange(length) + 1
    ours = rotate(rope, q, k, q_pos, k_pos)
    for rotated, x, pos in zip(ours, (q, k), (q_pos, k_pos), strict=True):
        x64 = np.asarray(x[0], np.float64)
        np.testing.assert_allclose(rotated[0], turned(x64, pos, layout, width), rtol=0, atol=3e-6)
        np.testing.assert_array_equal(rotated[..., width:], x[..., width:])
        if pos[-1] == 0:
            continue  # no rotation
        if width > 2:  # the only pair of 2 dims is the same in both layouts
            assert np.max(np.abs(rotated[0] - turned(x64, pos, other, width))) > 0.1
        if fraction < 1:  # the frequencies are those of a head as wide as the rotated part
            assert np.max(np.abs(rotated[0] - turned(x64, pos, layout))) > 0.1


def test_bfloat16_is_rounded_once_at_the_end():
    q, k = content(33, jnp.bfloat16)
    pos = np.arange(33) + 5000
    rounded = rotate(RoPE(**SIZE), q, k, pos, pos)
    whole = rotate(RoPE(**SIZE), q.astype(jnp.float32), k.astype(jnp.float32), pos, pos)
    for a, b in zip(rounded, whole, strict=True):
        assert a.dtype == jnp.bfloat16 and np.any(np.float32(a) != b)
        np.testing.assert_array_equal(a, b.astype(jnp.bfloat16))


def test_positions_of_a_batch_and_between_integers():
    """Each example has its own positions; dividing positions by 4 is interpolation by 4."""
    q, k = content(12)
    q2, k2 = jnp.concatenate([q, q]), jnp.concatenate([k, k])
    pos = np.arange(12, dtype=np.float32) + 300
    pos_BT = jnp.asarray(np.stack([pos / 4, pos]))
    both = RoPE(**SIZE).rotate({}, q2, k2, pos_BT, pos_BT, 4096)
    whole = jnp.asarray(pos, jnp.int32)
    first = rotate(RoPE(**SIZE, scaling=PositionInterpolation(4.0)), q, k, whole, whole)
    second = rotate(RoPE(**SIZE), q, k, whole, whole)
    for ours, a, b in zip(both, first, second, strict=True):
        np.testing.assert_allclose(ours, jnp.concatenate([a, b]), rtol=0, atol=3e-6)
        assert np.max(np.abs(a - b)) > 0.1


@pytest.mark.parametrize(
    "fraction, head_dim, pairs",
    [(1.0, 64, 32), (0.75, 64, 24), (0.25, 512, 64), (0.58, 100, 29), (0.5, 6, 1), (0.0, 8, 0)],
)
def test_p_rope_turns_the_highest_frequencies(fraction, head_dim, pairs):
    """The number is exact where `int(p * head_dim // 2)` is not, as for 0.58 * 100."""
    rope, p_rope = (
        RoPE(**{**SIZE, "head_dim": head_dim}, turning_fraction=x) for x in (1.0, fraction)
    )
    all_K, turning_K = (one.frequencies(64)[0] for one in (rope, p_rope))
    np.testing.assert_array_equal(turning_K, [*all_K[:pairs], *np.zeros(head_dim // 2 - pairs)])
    assert len(p_rope.periods()) == pairs


def test_p_rope_keeps_the_still_dims_of_the_half_layout():
    p_rope = RoPE(**SIZE, turning_fraction=0.5, scaling=PositionInterpolation(4.0))
    turned, pairs = p_rope.turning_pairs, SIZE["head_dim"] // 2
    q, k = content(12)
    pos = jnp.arange(300, 312)
    found, _ = rotate(p_rope, q, k, pos, pos)
    moved = np.any(np.asarray(found != q), axis=(0, 1, 2))
    np.testing.assert_array_equal(moved, np.arange(2 * pairs) % pairs < turned)


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"head_dim": 7}, "even"),
        ({"rotary_fraction": 0.1875}, "RoPE.rotary_fraction"),  # 3 dims
        ({"rotary_fraction": 0.26}, "selects 4.16"),
        ({"rotary_fraction": 0.01}, "even"),
        ({"rotary_fraction": 1.5}, "at most 1"),
        ({"rotary_fraction": 0.0}, "above 0"),
        ({"base": 1.0}, "RoPE.base"),
        ({"turning_fraction": 1.5}, "RoPE.turning_fraction is 1.5: it must be from 0 to 1"),
    ],
)
def test_what_cannot_be_rotated(changed, match):
    with pytest.raises(UserError, match=match):
        RoPE(**{**SIZE, **changed})
