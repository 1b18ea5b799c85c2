"""Why FIRE drifts: the biases and the attention of trained FIRE and KERPLE models, by budget.

usage: .venv/bin/python scripts/studies/drift_probes.py RUN ...

The tables in docs/evidence/drift_probes are written again from the newest checkpoints
of runs and from the validation split of their text. `drift_figure.py` draws them.

`heads.csv` has a row for each head and length n. Its biases are those of the query n - 1; its
attention is a mean over the queries from n/2 to n - 1 of rows of 1,024 tokens.

`parts.csv` has losses of FIRE with its bias exchanged in parts, at evaluation alone. Near keys, at
distances below the training length T, have the bias of FIRE, which is stretched, or that of the
frozen normaliser, which is not; so do far keys. What a part costs is the difference of two losses.

Shapes: B rows of text, T and S positions, N heads, D distances.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from command import refusing
from etils import epath
from probe_rows import CURVES, FOLDER, HEADS, PARTS, CurveRow, HeadRow, PartRow

from fire_lm import open_run
from fire_lm.data import Blocks, scoring_text
from fire_lm.errors import UserError
from fire_lm.models import Decoder, layer_attention, position_layers
from fire_lm.positions.fire import FIRE
from fire_lm.results.tables import write_table
from fire_lm.runs.run import Run

LONGEST, ROWS = 1024, 8  # tokens in a row of text, and rows
LENGTHS = (64, 128, 256, 512, 1024)


@dataclasses.dataclass(frozen=True)
class PartsOfFIRE(FIRE):
    """FIRE with the biases of near and far keys from different normalisers; see `PartRow`."""

    near: str = "fire"
    far: str = "fire"

    def common_bias(self, params: Any, num_positions: int, context_length: int) -> None:
        """Return None, so that `bias` is used."""

    def bias(self, params: Any, q_pos_BT: Any, k_pos_BS: Any, context_length: int) -> jax.Array:
        biases = {
            "fire": dataclasses.replace(self, normalizer_limit=None),
            "frozen": dataclasses.replace(self, normalizer_limit=self.train_length),
        }
        near, far = (
            FIRE.bias(biases[name], params, q_pos_BT, k_pos_BS, context_length)
            for name in (self.near, self.far)
        )
        is_near_BTS = q_pos_BT[:, :, None] - k_pos_BS[:, None, :] < self.train_length
        return jnp.where(is_near_BTS[:, None], near, far)


def with_encoding(model: Decoder, change: Callable[[Any], Any]) -> Decoder:
    return model.clone(encodings=tuple(map(change, model.encodings)))


def frozen(encoding: Any) -> Any:
    return dataclasses.replace(encoding, normalizer_limit=encoding.train_length)


def parts(encoding: Any, near: str, far: str) -> PartsOfFIRE:
    fields = {f.name: getattr(encoding, f.name) for f in dataclasses.fields(encoding) if f.init}
    return PartsOfFIRE(**fields, near=near, far=far)


@dataclasses.dataclass(frozen=True)
class Biases:
    """The biases of one layer's heads for the last query of an input of each length.

    Attributes:
      whole_ND: By length, the biases at the distances 0, 1, ..., length - 1.
      peak_N: By length, the distance, a real number, at which the bias of each head is largest.
    """

    whole_ND: Mapping[int, np.ndarray]
    peak_N: Mapping[int, np.ndarray]

    def lead_N(self, length: int, at_N: np.ndarray) -> np.ndarray:
        """Return the bias at a whole distance minus the largest at any other, for each head."""
        found = []
        for bias_D, at in zip(self.whole_ND[length], at_N, strict=True):
            found.append(bias_D[at] - np.delete(bias_D, at).max())
        return np.array(found)


@functools.partial(jax.jit, static_argnums=0)
def _bias_ND(encoding: Any, params: Any, query: jax.Array, distance_D: jax.Array) -> jax.Array:
    key_1D = (query - distance_D)[None]
    return encoding.bias(params, query[None, None], key_1D, LONGEST)[0, :, 0]


def biases(encoding: Any, params: Any) -> Biases:
    real_D = np.concatenate([np.linspace(0, 16, 1601), np.geomspace(16, LONGEST - 1, 400)[1:]])
    all_D = np.concatenate([np.arange(LONGEST), real_D]).astype(np.float32)
    whole, peak = {}, {}
    for length in LENGTHS:
        query = jnp.float32(length - 1)
        bias_ND = np.array(_bias_ND(encoding, params, query, jnp.minimum(all_D, length - 1)))
        whole[length] = bias_ND[:, :length]
        peak[length] = np.minimum(real_D, length - 1)[bias_ND[:, LONGEST:].argmax(axis=1)]
    return Biases(whole, peak)


@functools.partial(jax.jit, static_argnums=0)
def attention(
    model: Decoder, params: Any, text_BT: jax.Array, layer: jax.Array, peak_N: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the entropy, the attention to each head's peak and that beyond T, each `[N, T]`."""
    pos_1T = jnp.arange(LONGEST)[None]
    inputs_BT = jnp.pad(text_BT[:, :-1], ((0, 0), (1, 0)))
    weights_BNTS = layer_attention(
        model, params, inputs_BT, pos_1T, None, turn=0, repetition=layer
    ).weights
    distance_TS = pos_1T[0, :, None] - pos_1T
    at_peak_NTS = distance_TS == peak_N[:, None, None]
    beyond_TS = distance_TS >= model.encodings[0].train_length
    logs_BNTS = jnp.log(jnp.maximum(weights_BNTS, 1e-30))
    return (
        -jnp.sum(weights_BNTS * logs_BNTS, axis=-1).mean(0),
        jnp.sum(weights_BNTS * at_peak_NTS, axis=-1).mean(0),
        jnp.sum(weights_BNTS * beyond_TS, axis=-1).mean(0),
    )


def head_rows(run: Run, name: str) -> Iterator[HeadRow]:
    """Compute the rows of all heads of a run, and of a FIRE run with the frozen normaliser."""
    model, params = run.restore()
    text_BT = text_of(run)
    is_fire = isinstance(model.encodings[0], FIRE)
    models = {"": model, "frozen": with_encoding(model, frozen)} if is_fire else {"": model}
    for variant, changed in models.items():
        own = {at.layer: at for at in position_layers(changed, params)}
        for layer in range(model.size.num_layers):
            at = own.get(layer, own[0])  # layers may share the parameters of the first
            trained = at.encoding.train_length
            found = biases(at.encoding, at.params)
            peak_N = found.whole_ND[trained].argmax(axis=1)
            text = attention(changed, params, text_BT, layer, peak_N)
            learned = {key: float(v) for key, v in at.encoding.learned_scalars(at.params).items()}
            for length, head in itertools.product(LENGTHS, range(len(peak_N))):
                queries = slice(length // 2, length)
                bias_D = found.whole_ND[length][head]
                yield HeadRow(
                    *(name, run.encoding, variant, tokens_of(run), layer, head, length),
                    *(learned.get("c", math.nan), learned.get("L", math.nan)),
                    float(np.ptp(bias_D)),
                    float(found.peak_N[length][head]),
                    float(found.lead_N(length, peak_N)[head]),
                    stretch(learned, length, trained) if is_fire and not variant else 1.0,
                    *(float(values_NT[head, queries].mean()) for values_NT in text),
                )


def stretch(learned: Mapping[str, float], length: int, trained: int) -> float:
    """Return psi(max(L, length - 1)) / psi(max(L, T - 1))."""

    def psi(position: int) -> float:
        return math.log1p(learned["c"] * max(learned["L"], position))

    return psi(length - 1) / psi(trained - 1)


def tokens_of(run: Run) -> int:
    step = run.step if run.step is not None else max(run.steps)
    return step * run.settings.batch_size * run.settings.train_length


def part_rows(run: Run, name: str) -> Iterator[PartRow]:
    """Compute the losses of a FIRE run for all choices of parts."""
    model, params = run.restore()
    text_BT = text_of(run)
    for near, far in itertools.product(("fire", "frozen"), repeat=2):
        changed = with_encoding(model, functools.partial(parts, near=near, far=far))
        changed = changed.clone(attention="dense")
        for length in (64, 256, 1024):
            loss = _mean_loss(changed, params, text_BT.reshape(-1, length))
            yield PartRow(name, tokens_of(run), near, far, length, float(loss))


@functools.partial(jax.jit, static_argnums=0)
def _mean_loss(model: Decoder, params: Any, text_BT: jax.Array) -> jax.Array:
    """Return the mean loss of rows of text, which the model reads after the token 0."""
    inputs_BT = jnp.pad(text_BT[:, :-1], ((0, 0), (1, 0)))
    logits_BTV = model.apply({"params": params}, inputs_BT, jnp.arange(text_BT.shape[1])[None])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BTV, text_BT))


def text_of(run: Run) -> np.ndarray:
    """Return rows of the validation split of a run's text, int32 `[B, T]`."""
    data = run.data
    assert isinstance(data, Blocks)
    return scoring_text(data, length=LONGEST, num_sequences=ROWS).targets


def curve_rows(run: Run, name: str, layer: int, head: int) -> Iterator[CurveRow]:
    """Compute the bias of one head near the query, at whole and at real distances."""
    model, params = run.restore()
    (at,) = (one for one in position_layers(model, params) if one.layer == layer)
    distance_D = np.arange(0, 81, dtype=np.float32) / 10
    for length in (64, 256, 1024):
        bias_ND = _bias_ND(at.encoding, at.params, jnp.float32(length - 1), distance_D)
        for distance, bias in zip(distance_D, np.asarray(bias_ND)[head], strict=True):
            where = round(float(distance), 1)
            yield CurveRow(name, tokens_of(run), layer, head, length, where, float(bias))


def opened(paths: Sequence[str]) -> dict[str, Run]:
    """Open runs, by the last two parts of their paths.

    Raises:
      UserError: There is no run, a run cannot be opened, or two have the same name.
    """
    if not paths:
        raise UserError("usage: drift_probes.py RUN ...")
    runs: dict[str, Run] = {}
    for path in paths:
        name = "/".join(Path(path).parts[-2:])
        if name in runs:
            raise UserError(f"two runs are named {name}, by the last two parts of their paths")
        runs[name] = open_run(path)
    return runs


def main(paths: Sequence[str]) -> None:
    heads: list[HeadRow] = []
    losses: list[PartRow] = []
    runs = opened(paths)
    for name, run in runs.items():
        print(f"probing {name}", flush=True)
        heads += head_rows(run, name)
        if isinstance(run.model.encodings[0], FIRE):
            losses += part_rows(run, name)
        write_table(epath.Path(FOLDER / HEADS), HeadRow, heads)
        write_table(epath.Path(FOLDER / PARTS), PartRow, losses)
    local = [row for row in heads if not row.variant and row.length == 64 and row.peak > 0.5]
    if not local:
        raise UserError(f"no head of these runs is local at length 64, so {CURVES} stays as it was")
    leader = max(local, key=lambda row: (row.tokens, row.lead))
    curves = curve_rows(runs[leader.run], leader.run, leader.layer, leader.head)
    write_table(epath.Path(FOLDER / CURVES), CurveRow, curves)


if __name__ == "__main__":
    sys.exit(refusing(main, sys.argv[1:]))
