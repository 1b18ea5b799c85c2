"""The program behind scripts/draw_biases, which computes the numbers that `bias_figure` draws.

For the last query of an input and an untrained encoding, the program computes one of these
quantities as a function of the distance from the query to each key:

* the bias, if the encoding has one, and the decay of forget gates for the input 0;
* else q·k/sqrt(H) of an all-ones query and key, if the encoding changes queries and keys, as rotary
  encodings do;
* else the inner product of the two positions' embeddings, if the encoding adds embeddings;
* else 0.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from bias_figure import Panel, figure
from command import refusing
from etils import epath

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.models import ModelSize
from fire_lm.positions import PositionalEncoding

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# The size has the heads of the 125M model, and 12 layers, so that any schedule of encodings fits.
SIZE = ModelSize(12, hidden_size=768, num_heads=12, head_dim=64, mlp_size=3072, init_std=0.02)
TRAIN_LENGTH = 512
FAR_LENGTH = 4 * TRAIN_LENGTH
HEADS = (1, 3, 5, 7)  # Counted from 0, these heads have ALiBi's slopes 1/4, 1/16, 1/64, 1/256.


def encodings(name: str) -> tuple[PositionalEncoding, ...]:
    """Return the encodings in configs/positions/NAME.gin, among which the layers alternate."""
    files = [str(CONFIGS / "runs/quickstart.gin"), str(CONFIGS / f"positions/{name}.gin")]
    config = load_experiment(files)
    return config.model_with(size=SIZE, train_length=TRAIN_LENGTH).encodings


def curves(encoding: PositionalEncoding, length: int) -> tuple[str, np.ndarray]:
    """Return the name of the computed quantity, and its values `[N or 1, length]` by distance.

    The query is at position `length - 1`.
    """
    params = encoding.init(jax.random.key(0))
    k_pos, q_pos = jnp.arange(length)[None], jnp.array([[length - 1]])
    bias_BNTS = encoding.bias(params, q_pos, k_pos, length)
    decay_BTN = encoding.log_decay(params, jnp.zeros((1, 1, encoding.hidden_size)))
    if decay_BTN is not None:
        distance_BNTS = (q_pos - k_pos)[:, None, None].astype(jnp.float32)
        decay_BNTS = decay_BTN[:, 0, :, None, None] * distance_BNTS
        bias_BNTS = decay_BNTS if bias_BNTS is None else bias_BNTS + decay_BNTS
    if bias_BNTS is not None:
        quantity = "bias" if decay_BTN is None else "bias and gates"
        return quantity, by_distance(bias_BNTS[0, :, 0])
    ones = jnp.ones((1, length, encoding.num_heads, encoding.head_dim), jnp.float32)
    q, k = encoding.rotate(params, ones[:, :1], ones, q_pos, k_pos, length)
    if k.shape != ones.shape or jnp.any(k != ones):
        scale_BT = encoding.logit_scale(params, q_pos)
        scale = q.shape[-1] ** -0.5 * (1.0 if scale_BT is None else float(scale_BT[0, 0]))
        return "q·k/√H of ones", by_distance(jnp.einsum("NH,SNH->NS", q[0, 0], k[0]) * scale)
    x_SD = encoding.embed(params, jnp.zeros((1, length, encoding.hidden_size)), k_pos)[0]
    if jnp.any(x_SD != 0):
        return "inner product of embeddings", by_distance((x_SD @ x_SD[-1])[None])
    return "nothing added", np.zeros((1, length), np.float32)


def by_distance(values_NS: jax.Array) -> np.ndarray:
    """Return the values in the order of the keys' distance from the last key.

    The result is `[N, S]`, or `[1, S]` if all heads are identical.
    """
    reversed_NS = np.asarray(values_NS)[:, ::-1]
    alike = np.all(reversed_NS == reversed_NS[:1])
    return reversed_NS[:1] if alike else reversed_NS


def panel(title: str, encoding: PositionalEncoding) -> Panel:
    """Return an encoding's panel for the training length and, if possible, for a longer length."""

    def rows(values_NS: np.ndarray) -> np.ndarray:
        return values_NS if len(values_NS) == 1 else values_NS[list(HEADS)]

    quantity, near_NS = curves(encoding, TRAIN_LENGTH)
    try:
        encoding.check_length(FAR_LENGTH, FAR_LENGTH)
    except UserError:  # The encoding's table of positions is too short.
        return Panel(title, quantity, rows(near_NS), None)
    return Panel(title, quantity, rows(near_NS), rows(curves(encoding, FAR_LENGTH)[1]))


def panels(names: Sequence[str]) -> list[Panel]:
    """Return one panel per encoding.

    Identical encodings share a panel. A file whose layers alternate among several encodings adds
    panels only for those encodings that no other file provides.
    """
    titles: dict[PositionalEncoding, list[str]] = {}
    schedules: dict[str, tuple[PositionalEncoding, ...]] = {}
    for name in names:
        turns = encodings(name)
        if len(turns) > 1:
            schedules[name] = turns
        else:
            titles.setdefault(turns[0], []).append(name)
    for name, turns in schedules.items():
        for encoding in turns:
            titles.setdefault(encoding, [f"{name}: {type(encoding).__name__}"])
    return [panel(", ".join(shown), encoding) for encoding, shown in titles.items()]


def main(arguments: Sequence[str]) -> None:
    if not arguments:
        raise UserError("usage: draw_biases.py OUT.png [NAME ...]")
    out, *names = arguments
    if Path(out).is_dir() or not Path(out).absolute().parent.is_dir():
        raise UserError(f"{out} is a folder, or its folder does not exist")
    every = sorted(path.stem for path in (CONFIGS / "positions").glob("*.gin"))
    drawn = panels(names or every)
    figure(drawn, HEADS, epath.Path(out))
    print(f"{out}: {len(drawn)} encodings")


if __name__ == "__main__":
    sys.exit(refusing(main, sys.argv[1:]))
