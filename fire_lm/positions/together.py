"""Two encodings in the same layer, such as FIRE and a forget gate.

Biases and log decays are added, logit scales are multiplied, and rotations and embeddings are
applied one after the other. More than two encodings are possible, because `Together` is itself an
encoding.

Shapes: B batch, T queries, S keys, N heads, H head dim, D model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.common_bias import CommonBias
from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding
from fire_lm.positions.nope import NoPE

Kind = Callable[..., PositionalEncoding]


@dataclasses.dataclass(frozen=True)
class Together(PositionalEncoding):
    """Two encodings in the same layer. Parameters per layer: those of both.

    Attributes:
      first: The class of an encoding, or another callable that returns it; afterwards, the encoding
        itself.
      second: The other encoding, likewise.
    """

    first: Kind | PositionalEncoding = NoPE
    second: Kind | PositionalEncoding = NoPE

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            part = getattr(self, name)
            is_built = isinstance(part, PositionalEncoding)
            kind = functools.partial(dataclasses.replace, part) if is_built else part
            object.__setattr__(self, name, kind(**self.model_shape))
        for hook in ("rotate", "mix"):
            if all(part.acts_through(hook) for part in self.parts.values()):
                names = " and ".join(type(part).__name__ for part in self.parts.values())
                acts = {"rotate": "rotate queries and keys", "mix": "mix the heads' logits"}[hook]
                raise UserError(f"Together: {names} both {acts}: choose one of them")

    @property
    def title(self) -> str:
        return " with ".join(part.title for part in self.parts.values())

    @property
    def parts(self) -> dict[str, PositionalEncoding]:
        """The two encodings, by the names of their parameters."""
        assert isinstance(self.first, PositionalEncoding)
        assert isinstance(self.second, PositionalEncoding)
        return {"first": self.first, "second": self.second}

    def acts_through(self, hook: str) -> bool:
        return any(part.acts_through(hook) for part in self.parts.values())

    @property
    def translation_invariant(self) -> bool:
        return all(part.translation_invariant for part in self.parts.values())

    @property
    def integer_positions(self) -> bool:
        return any(part.integer_positions for part in self.parts.values())

    @property
    def constant_init(self) -> bool:
        return all(
            part.constant_init or not jax.eval_shape(part.init, jax.random.key(0))
            for part in self.parts.values()
        )

    @property
    def bias_window(self) -> int | None:
        windows = [part.bias_window for part in self._with("bias").values()]
        known = [window for window in windows if window is not None]
        return max(known) if known and len(known) == len(windows) else None

    @property
    def uses_context_length(self) -> bool:
        return any(part.uses_context_length for part in self.parts.values())

    @property
    def stretches(self) -> bool:
        return any(part.stretches for part in self.parts.values())

    def interpolated(self) -> Together | None:
        changed = {name: part.interpolated() for name, part in self.parts.items()}
        changed = {name: part for name, part in changed.items() if part is not None}
        return dataclasses.replace(self, **changed) if changed else None  # type: ignore[arg-type]

    def bidirectional(self) -> Together:
        parts = {name: part.bidirectional() for name, part in self.parts.items()}
        return dataclasses.replace(self, **parts)  # type: ignore[arg-type]

    def periods(self) -> np.ndarray | None:
        found = (part.periods() for part in self.parts.values())
        return next((periods for periods in found if periods is not None), None)

    def check_length(self, length: int, context_length: int) -> None:
        for part in self.parts.values():
            part.check_length(length, context_length)

    def init(self, rng: jax.Array) -> Params:
        rngs = jax.random.split(rng)
        found = {n: part.init(r) for (n, part), r in zip(self.parts.items(), rngs, strict=True)}
        return {name: params for name, params in found.items() if params}

    def prepare(self, params: Params) -> Params:
        return {name: self.parts[name].prepare(own) for name, own in params.items()}

    def diagnostics(self, params: Params) -> dict[str, jax.Array]:
        return self._merged("diagnostics", params)

    def explain_nan(self, diagnostics: Mapping[str, float]) -> str | None:
        reasons = (part.explain_nan(diagnostics) for part in self.parts.values())
        return next(filter(None, reasons), None)

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        return self._merged("learned_scalars", params)

    def embed(self, params: Params, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
        for name, part in self.parts.items():
            x_BTD = part.embed(params.get(name, {}), x_BTD, pos_BT)
        return x_BTD

    def rotate(
        self,
        params: Params,
        q_BTNH: jax.Array,
        k_BSNH: jax.Array,
        q_pos_BT: jax.Array,
        k_pos_BS: jax.Array,
        context_length: int,
    ) -> tuple[jax.Array, jax.Array]:
        for name, part in self._with("rotate").items():
            own = params.get(name, {})
            q_BTNH, k_BSNH = part.rotate(own, q_BTNH, k_BSNH, q_pos_BT, k_pos_BS, context_length)
        return q_BTNH, k_BSNH

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array | None:
        terms = (
            part.bias(params.get(name, {}), q_pos_BT, k_pos_BS, context_length)
            for name, part in self.parts.items()
        )
        return _combined(jnp.add, *terms)

    def common_bias(
        self, params: Params, num_positions: int, context_length: int
    ) -> CommonBias | None:
        biases = self._with("bias")
        if len(biases) == 1:
            ((name, part),) = biases.items()
            return part.common_bias(params.get(name, {}), num_positions, context_length)
        return super().common_bias(params, num_positions, context_length)

    def logit_scale(self, params: Params, q_pos_BT: jax.Array) -> jax.Array | None:
        scales = (p.logit_scale(params.get(name, {}), q_pos_BT) for name, p in self.parts.items())
        return _combined(jnp.multiply, *scales)

    def log_decay(self, params: Params, y_BTD: jax.Array) -> jax.Array | None:
        decays = (part.log_decay(params.get(n, {}), y_BTD) for n, part in self.parts.items())
        return _combined(jnp.add, *decays)

    def mix(
        self, params: Params, products_BNTS: jax.Array, bias_BNTS: jax.Array | None
    ) -> jax.Array:
        for name, part in self._with("mix").items():
            return part.mix(params.get(name, {}), products_BNTS, bias_BNTS)
        return super().mix(params, products_BNTS, bias_BNTS)

    def _with(self, hook: str) -> dict[str, PositionalEncoding]:
        """Return the parts that act through a hook."""
        return {name: part for name, part in self.parts.items() if part.acts_through(hook)}

    def _merged(self, method: str, params: Params) -> dict[str, jax.Array]:
        found: dict[str, jax.Array] = {}
        for name, own in params.items():
            for scalar, value in getattr(self.parts[name], method)(own).items():
                found[f"{scalar}_of_{name}" if scalar in found else scalar] = value
        return found


def _combined(
    combine: Callable[[jax.Array, jax.Array], jax.Array],
    first: jax.Array | None,
    second: jax.Array | None,
) -> jax.Array | None:
    """Return a term of which each encoding contributes its own part or None."""
    if first is None or second is None:
        return second if first is None else first
    return combine(first, second)
