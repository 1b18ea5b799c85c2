"""The TPU compiler's estimates for the attention kernels; no kernel runs, and no TPU is needed.

The estimate is the number of instruction bundles that run over the whole causal grid for one head.
Each bundle of the final schedule (`preflight/bundles.py`) is counted as often as it runs: once for
each step of the grid, each sequence of a block, or each part of a tile with a given number of kinks
or tables. The numbers of kinks are computed from FIRE's parameters. The estimate covers the forward
and backward passes of one attention call with 12 heads of width 64 in bfloat16, without XLA's work
around the kernels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from fire_lm.attention.decay import cumulative_decay
from fire_lm.attention.tpu import tpu_attention
from fire_lm.attention.tpu.schedule import Blocks, choose_blocks, tiles
from fire_lm.console import say
from fire_lm.hardware.slices import parse_slice
from fire_lm.positions import PositionalEncoding
from fire_lm.positions.base import Params
from fire_lm.positions.fire import FIRE
from fire_lm.positions.fox import FoX
from fire_lm.positions.kerple import KERPLELog
from fire_lm.positions.nope import NoPE
from fire_lm.positions.pope import PoPE
from fire_lm.positions.together import Together
from fire_lm.preflight import bundles
from fire_lm.preflight.bundles import Stretch
from fire_lm.preflight.kernels import ORDERS, cycles, has_kinks, key_width, lists_of_parts

HEADS, WIDTH, TRAIN_LENGTH = 12, 64, 2048
SHAPES = ((8, 2048), (8, 8192), (2, 2048))
WINDOW_SHAPES = ((8, 8192), (2, 8192))
MEMORY_LENGTHS = (8192, 32768)
# The number of random draws of FIRE's MLP; the draw with the most kinks represents a trained MLP.
DRAWS = 100
FIRE_WITH_FOX = functools.partial(Together, first=FIRE, second=FoX)
TRAINED_L = 1400.0  # Appendix B of the paper reports 1200 to 1600 at a training length of 2048.


class Shape(NamedTuple):
    """The batch size and sequence length of one comparison."""

    batch: int
    length: int
    window: int | None = None

    def blocks(self, encoding: PositionalEncoding) -> Blocks:
        dtype, gates = jnp.dtype(jnp.bfloat16), encoding.acts_through("log_decay")
        return choose_blocks(
            self.length,
            self.batch,
            key_width(encoding),
            dtype,
            None,
            self.window,
            gates,
            of_values=WIDTH,
        )


def estimate(slice_name: str, folder: Path, window: int | None = None) -> dict[str, str]:
    """Return each estimate by its label; the compiler writes its files to `folder`.

    With a window, only kernels with it are compared with those without.
    """
    compiler = Compiler(slice_name, folder)
    return dict(compare(compiler) if window is None else with_window(compiler, window))


def compare(compiler: Compiler) -> Iterator[tuple[str, str]]:
    for batch, length in SHAPES:
        label = f"B={batch} n={length}"
        nope = compiler.count(NoPE, Shape(batch, length))
        yield f"NoPE, {label}, bundles per tile and sequence", _both(_per_tile(nope, batch, length))
        for name, params in (
            ("FIRE at initialisation", None),
            (f"FIRE, L = {TRAINED_L:.0f}, most kinks of {DRAWS} draws", trained_like_fire()),
        ):
            found = compiler.count(FIRE, Shape(batch, length), params)
            yield f"{name} / NoPE, {label}", _ratio(found, nope)
        kerple = compiler.count(KERPLELog, Shape(batch, length))
        yield f"KERPLE-log / NoPE, {label}", _ratio(kerple, nope)
        if (batch, length) == SHAPES[0]:
            newer = (("FoX", FoX), ("FIRE with FoX", FIRE_WITH_FOX), ("PoPE", PoPE))
            for name, encoding in newer:
                found = compiler.count(encoding, Shape(batch, length))
                yield f"{name} / NoPE, {label}", _ratio(found, nope)
            stock = compiler.stock(length)
            ours = _per_tile(nope, batch, length)
            yield "JAX's flash attention, bundles per tile", _both(stock)
            yield "NoPE / JAX's flash attention", _ratio(ours, stock)
    for length in MEMORY_LENGTHS:
        nope_bytes = compiler.temp_bytes(NoPE, Shape(1, length))
        for name, kind in (("FIRE", FIRE), ("KERPLE-log", KERPLELog)):
            extra = (compiler.temp_bytes(kind, Shape(1, length)) - nope_bytes) / 2**20
            yield f"{name}'s temporary memory beyond NoPE's, B=1 n={length}", f"{extra:.1f} MiB"


def with_window(compiler: Compiler, window: int) -> Iterator[tuple[str, str]]:
    for batch, length in WINDOW_SHAPES:
        for kind in (NoPE, FIRE, KERPLELog):
            full, short = (
                compiler.count(kind, Shape(batch, length, each)) for each in (None, window)
            )
            label = f"{kind.__name__}, B={batch} n={length}"
            yield f"{label}, window {window} / none", _ratio(short, full)


def _per_tile(count: dict[str, float], batch: int, length: int) -> dict[str, float]:
    blocks = Shape(batch, length).blocks(_encoding(NoPE))
    per = batch * tiles(blocks, "by_query").shape[1]
    return {name: value / per for name, value in count.items()}


def _both(count: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in count.items())


def _ratio(count: dict[str, float], to: dict[str, float]) -> str:
    parts = [f"{name} {count[name] / to[name]:.3f}" for name in count]
    return f"{sum(count.values()) / sum(to.values()):.3f} ({', '.join(parts)})"


def trained_like_fire() -> Params:
    fire = _encoding(FIRE)
    draws = jax.vmap(fire.init)(jax.random.split(jax.random.key(1), DRAWS))
    kinks = jax.vmap(lambda params: fire.prepare(params)["kinks"])(draws)
    params = jax.tree.map(lambda leaf: leaf[jnp.argmax(kinks)], draws)
    return {**params, "L_multiplier": jnp.float32(TRAINED_L / (TRAIN_LENGTH / 4))}


def _encoding(kind: Any) -> PositionalEncoding:
    return kind(HEADS, WIDTH, TRAIN_LENGTH, HEADS * WIDTH)


class Compiler:
    """A class that compiles attention for a chip of a slice and reads the kernels' schedules."""

    def __init__(self, name: str, folder: Path):
        self.device = parse_slice(name).devices()[0]
        self.folder = folder

    def compile(self, function: Callable[..., Any], *arguments: Any) -> jax.stages.Compiled:
        """Compile `function`, and leave only this program's schedules in the folder."""
        for path in self.folder.iterdir():
            path.unlink()
        sharding = SingleDeviceSharding(self.device)
        placed = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments
        )
        return jax.jit(function).lower(*placed).compile()

    @functools.cache  # noqa: B019  (There is one compiler per run.)
    def schedules(self, kind: Any, shape: Shape) -> dict[str, list[Stretch]]:
        self.attention(kind, shape)
        blocks = shape.blocks(_encoding(kind))
        names = {name: blocks.kernel_name(name) for name in ORDERS}
        return {which: bundles.read(self.folder, name) for which, name in names.items()}

    def attention(self, kind: Any, shape: Shape) -> jax.stages.Compiled:
        """Compile the forward and backward passes of attention with the encoding `kind`."""
        encoding = _encoding(kind)
        say(f"compiling {encoding.title} B={shape.batch} n={shape.length} window {shape.window}")

        def attended(
            params: Params, gates: jax.Array | None, q: jax.Array, k: jax.Array, v: jax.Array
        ) -> jax.Array:
            tables = encoding.common_bias(params, shape.length, shape.length)
            decay = None if gates is None else cumulative_decay(gates)
            return tpu_attention(q, k, v, bias=tables, decay=decay, window=shape.window)

        def both(d_out: jax.Array, *inputs: Any) -> Any:
            out, gradient = jax.vjp(attended, *inputs)
            return out, gradient(d_out)

        params = jax.eval_shape(encoding.init, jax.random.key(0))
        gates = None
        if encoding.acts_through("log_decay"):
            gates = jax.ShapeDtypeStruct((shape.batch, shape.length, HEADS), jnp.float32)
        keys, values = (
            _array(shape.batch, shape.length, HEADS, width)
            for width in (key_width(encoding), WIDTH)
        )
        return self.compile(both, values, params, gates, keys, keys, values)

    def temp_bytes(self, kind: Any, shape: Shape) -> int:
        memory = self.attention(kind, shape).memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    def count(self, kind: Any, shape: Shape, params: Params | None = None) -> dict[str, float]:
        """Return the number of bundles that each kernel runs, for one head and all sequences.

        The parameters of the encoding are those at initialisation, unless others are given.
        """
        encoding = _encoding(kind)
        params = encoding.init(jax.random.key(0)) if params is None else params
        blocks, found = shape.blocks(encoding), {}
        for name, order in ORDERS.items():
            lists = None
            if has_kinks(encoding, shape.length):
                lists = lists_of_parts(encoding, params, shape.length, blocks, order)
            groups = shape.batch // blocks.batch
            found[name] = groups * cycles(self.schedules(kind, shape)[name], blocks, order, lists)
        return found

    def stock(self, length: int) -> dict[str, float]:
        """Return the bundles per tile of JAX's flash attention, with our tiles of 512 tokens."""
        from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

        say("compiling JAX's flash attention")
        names = inspect.signature(BlockSizes).parameters
        sizes = BlockSizes(**{name: 1 if name == "block_b" else 512 for name in names})
        attended = functools.partial(
            flash_attention, causal=True, sm_scale=WIDTH**-0.5, block_sizes=sizes
        )

        def both(d_out: jax.Array, *qkv: jax.Array) -> Any:
            out, gradient = jax.vjp(attended, *qkv)
            return out, gradient(d_out)

        self.compile(both, *[_array(1, HEADS, length, WIDTH)] * 4)
        body = {
            path.name: bundles.longest(bundles.parse(path.read_text()))
            for path in self.folder.glob("*flash*-final_bundles.txt")
            if "schedule-analysis" not in path.name
        }
        backward = sum(size for name, size in body.items() if "_bwd_" in name or "dq" in name)
        return {"forward": sum(body.values()) - backward, "backward": backward}


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)
