"""FIRE (functional interpolation for relative positions) and its variants.

Source: Li et al. (ICLR 2024), Eq. 4 (= Eq. 23 of its appendix):

    b_h(i, j) = f_theta( psi(i - j) / psi(max(L, i)) )_h ,   psi(x) = log(c x + 1)

`f_theta` is one MLP R -> R^N for all heads of a layer; c and L are learned scalars. Where the
text of the paper is ambiguous, we follow the code of Appendix E:

* the MLP has biases ("omitted for brevity" in footnote 5): without biases, a ReLU MLP of a scalar
  in [0, 1] is a straight line through 0;
* kernels and biases start from U(-1/sqrt(fan_in), 1/sqrt(fan_in)): with zero biases, f would be
  exactly linear at step 0;
* only the absolute values of c and L are used, and L = |L_multiplier * init_L|, where only
  L_multiplier (initially 1) is learned, so that Adam changes L by a fraction of its value instead
  of by the learning rate;
* positions count from 0, and epsilon is added to the denominator after the logarithm.

The default has the two hidden layers of the paper's experiments (Appendices B and C.1, Table 5);
the listing of Appendix E has one hidden layer: `FIRE(..., hidden_layers=1, init_L=512)`.

FIRE-G is our own variant: Eq. 4 divides by a normaliser that grows with the query's position, so
the bias becomes flat far beyond the training length, where the number of keys keeps growing. A
learned length gain restores the range of the bias:

    b_h(i, j) = g_i f_theta(...)_h ,   g_i = (psi(max(L, i)) / psi(L))^gamma

gamma = 0 gives Eq. 4, and g_i = 1 for i <= L. With gamma = 1 and a linear f, FIRE-G equals
KERPLE-log (or ALiBi if psi is the identity) at every length, so for these two encodings, Theorem
3.1 is true without its bound on the length.

The frozen normaliser is also ours: no query counts as later than the last position of an input of
`normalizer_limit` tokens, so max(L, i) becomes max(L, min(i, limit - 1)), also in g_i. For queries
beyond the limit, the bias depends on the distance alone. At distances beyond the limit, the
argument of f exceeds 1; f then continues as a straight line with its slope at 1, instead of through
kinks of the MLP that training never reached (docs/frozen_normaliser.md).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fire_lm.attention.common_bias import CommonBias
from fire_lm.errors import UserError
from fire_lm.positions.base import Params, PositionalEncoding
from fire_lm.positions.fire_formulas import (
    ACTIVATIONS,
    Function,
    init_mlp,
    length_gain,
    log_transform,
    mlp,
    normalized_distance,
    straight_beyond_1,
    threshold_position,
)
from fire_lm.positions.piecewise import evaluate, first, hinges, segments
from fire_lm.positions.warm_start import interpolating_mlp, knots

# The numbers of hinges with which f can be computed. FIRE uses the smallest number that covers all
# kinks of f.
MAX_KINKS = (16, 32, 64)

# Finding the kinks of a layer evaluates all preceding layers, so the time grows quadratically.
_MOST_LAYERS = 16


# The settings that have no effect with another setting, by the name and the value of the latter.
_WITHOUT_EFFECT = {
    ("threshold", False): ("init_L", "learn_L"),
    ("transform", "identity"): ("init_c",),
    ("hidden_layers", 0): ("width",),
}


def _float32(value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))


@dataclasses.dataclass(frozen=True)
class FIRE(PositionalEncoding):
    """The FIRE encoding (Eq. 4).

    Parameters per layer for 12 heads: 1518 (two hidden layers of 32), 462 (Appendix E), 26 (f
    affine); 1519 with a length gain (FIRE-G), 1517 with a fixed threshold or no threshold, 1516 if
    there is also no c.

    FIRE-S is this encoding with `build_decoder.share_position = True`.

    Attributes:
      hidden_layers: The number of hidden layers of f_theta, at least 0 (0 makes f affine).
      width: The width of each hidden layer.
      activation: The activation between the layers; "gelu" is the tanh approximation.
      final_activation: Whether the activation is also applied to the output of f (Table 7).
      transform: The function psi: "log", or "identity", which has no c (Eq. 21).
      threshold: Whether to divide by psi(max(L, i)); False divides by psi(i) (Eq. 21 and 22).
        Settings of what a form does not have (such as L here) are rejected.
      learn_L: Whether the threshold is learned; if not, it stays at `init_L`.
      init_c: The initial value of c in psi.
      init_L: The initial threshold L in tokens, or 'train_length'; None means a quarter of
        `train_length`, the paper's ratio (512 at 2048), or no threshold.
      init_gamma: The initial length gain of FIRE-G; None means Eq. 4, without a gain.
      init_as: An additive encoding that accepts positions between integers (`KERPLELog`, `ALiBi`):
        at step 0, FIRE has the biases of this encoding on 0 <= i - j <= i <= L (Theorem 3.1).
        `init_L = None` then means the full training length. Because f is piecewise linear, a gap
        remains (`warm_start_gap`); the closer psi is to the transform of that encoding, the smaller
        the gap. For training lengths of 64 to 8192, the gap is at most 0.1 % of the range for
        KERPLE-log with init_c = 1 and 0.3 % for ALiBi with init_c = 0.01. A gap of more than 5 % is
        rejected.
      query_index_offset: The index of the first query in max(L, i); the paper counts from 1.
      epsilon: The number added to psi(max(L, i)).
      normalizer_limit: The input length in tokens, or 'train_length', from which the normaliser
        stays as it is; None means the paper, without a limit. Because positions count from 0,
        max(|L|, i) becomes max(|L|, min(i, limit - 1)). Nothing changes for inputs of up to this
        length. It may be changed at evaluation.
    """

    length_fields: ClassVar[tuple[str, ...]] = ("init_L",)
    evaluation_fields: ClassVar[tuple[str, ...]] = ("normalizer_limit",)

    hidden_layers: int = 2
    width: int = 32
    activation: Literal["relu", "gelu", "gelu_exact"] = "relu"
    final_activation: bool = False
    transform: Literal["log", "identity"] = "log"
    threshold: bool = True
    learn_L: bool = True
    init_c: float = 0.1
    init_L: float | Literal["train_length"] | None = None
    init_gamma: float | None = None
    init_as: Callable[..., PositionalEncoding] | PositionalEncoding | None = None
    query_index_offset: Literal[0, 1] = 0
    epsilon: float = 1e-6
    normalizer_limit: int | float | Literal["train_length"] | None = None

    def __post_init__(self) -> None:
        self._check_effects()
        for name in ("init_L", "normalizer_limit"):
            if getattr(self, name) == "train_length":
                object.__setattr__(self, name, self.train_length)
        for name, least in (("hidden_layers", 0), ("width", 1), ("epsilon", 0)):
            if not getattr(self, name) >= least:
                raise UserError(f"FIRE.{name} is {getattr(self, name)}: it must be {least} or more")
        if self.hidden_layers > _MOST_LAYERS:
            raise UserError(
                f"FIRE.hidden_layers is {self.hidden_layers}: it must be {_MOST_LAYERS} or less"
            )
        if _float32(self.epsilon) == 0 and not self.threshold and self.query_index_offset == 0:
            raise UserError(
                f"FIRE.epsilon is {self.epsilon}, which is 0 in float32: without a threshold, it "
                "must be above 0, because the first query's distance and normaliser are both 0"
            )
        for name in ("init_c", "init_L"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise UserError(f"FIRE.{name} is '{value}': it must be a number")
            if value is not None and not value > 0:
                raise UserError(f"FIRE.{name} is {value}: it must be above 0")
            if value is not None and not 0 < (in_float32 := _float32(value)) < math.inf:
                raise UserError(
                    f"FIRE.{name} is {value}, which is {in_float32} in float32: choose a value "
                    "that float32 can represent"
                )
        if self.init_gamma is not None and not self.threshold:
            raise UserError(
                "FIRE.init_gamma needs FIRE.threshold = True: the gain is relative to psi(L)"
            )
        if self.init_L is None and self.threshold:
            init_L = self.train_length / 4 if self.init_as is None else float(self.train_length)
            object.__setattr__(self, "init_L", init_L)
        self._check_limit()
        if self.init_as is not None:
            self._prepare_warm_start()

    def _check_effects(self) -> None:
        for (name, value), settings in _WITHOUT_EFFECT.items():
            for setting in settings if getattr(self, name) == value else ():
                default = getattr(type(self), setting)
                if (given := getattr(self, setting)) != default:
                    raise UserError(
                        f"FIRE.{setting} is {given}: it has no effect with FIRE.{name} = "
                        f"{value!r}, so leave it at {default}"
                    )

    def _check_limit(self) -> None:
        limit = self.normalizer_limit
        if limit is None:
            return
        if isinstance(limit, str) or not 1 <= limit < math.inf:
            raise UserError(
                f"FIRE.normalizer_limit is {limit}: it must be a number of tokens, 1 or more, or "
                "'train_length'"
            )
        if not self.threshold and self.last_position == 0:
            raise UserError(
                "FIRE.normalizer_limit is 1: without a threshold, it must be above 1, because "
                "psi(0) is 0"
            )

    @property
    def initial_L(self) -> float:
        """The initial threshold L in tokens, whatever `init_L` was given as."""
        assert isinstance(self.init_L, int | float)  # by __post_init__, with a threshold
        return self.init_L

    @property
    def last_position(self) -> float | None:
        """The largest position, counted as in max(L, i), of the normaliser; None if no limit."""
        limit = self.normalizer_limit
        assert not isinstance(limit, str)  # by __post_init__
        return None if limit is None else limit - 1 + self.query_index_offset

    @property
    def translation_invariant(self) -> bool:
        """Whether the normaliser is the same for all queries, whatever the parameters are.

        Otherwise, FIRE divides by the query's position.
        """
        least_L = self.initial_L if self.threshold and not self.learn_L else 0.0
        return self.last_position is not None and self.last_position <= max(
            least_L, self.query_index_offset
        )

    def bidirectional(self) -> PositionalEncoding:
        if not self.threshold and not self.query_index_offset:
            raise UserError(
                "FIRE.query_index_offset is 0: without a threshold, it must be 1 in an encoder, "
                "whose first query has later keys, at distances that 0 would divide"
            )
        return _BidirectionalFIRE(**self.model_shape, causal=self)

    def init(self, rng: jax.Array) -> Params:
        widths = (1, *[self.width] * self.hidden_layers, self.num_heads)
        params = {"mlp": init_mlp(rng, widths)}
        if self.init_as is not None:
            params["mlp"] = interpolating_mlp(params["mlp"], self._values_to_start_from(rng))
        if self.transform == "log":
            params["c"] = jnp.float32(self.init_c)
        if self.threshold and self.learn_L:
            params["L_multiplier"] = jnp.float32(1.0)
        if self.init_gamma is not None:
            params["gamma"] = jnp.float32(self.init_gamma)
        return params

    def common_bias(
        self, params: Params, num_positions: int, context_length: int
    ) -> CommonBias | None:
        """Return the bias of each distance, or Eq. 4 as linear segments, or None.

        If the bias depends on the distance alone, its values at all distances suffice. Otherwise,
        the result is None if f is not a pure ReLU MLP. The segments are exact if f has at most
        `MAX_KINKS[-1]` kinks; the last one continues beyond x = 1.
        """
        if self.translation_invariant:
            return super().common_bias(params, num_positions, context_length)
        params = self.prepare(params)
        if "hinges" not in params or self.final_activation:
            return None
        psi, L, f = self._psi(params), self._threshold(params), params["hinges"]
        slope_KN, offset_KN = segments(f)
        pos_P = jnp.arange(num_positions)
        query_P = self._counted(pos_P)
        gain_P = jnp.ones(num_positions, jnp.float32)
        if "gamma" in params:
            gain_P = length_gain(query_P, psi, L, params["gamma"], self.last_position)
        return CommonBias(
            slab_MP=jax.lax.stop_gradient(psi(pos_P.astype(jnp.float32))[None]),
            row_P=1 / (psi(threshold_position(query_P, L, self.last_position)) + self.epsilon),
            gain_P=gain_P,
            kink_K=f.kink_K,
            slope_KN=slope_KN,
            offset_KN=offset_KN,
            exact=params["kinks"] <= MAX_KINKS[-1],
            rate=jnp.abs(params["c"]) if "c" in params else None,
        )

    def _psi(self, params: Params) -> Function:
        return log_transform(params["c"]) if self.transform == "log" else lambda x: x

    def _threshold(self, params: Params) -> jax.Array | float:
        return params.get("L_multiplier", 1.0) * self.initial_L if self.threshold else 0.0

    def _counted(self, pos: jax.Array) -> jax.Array:
        """Shift positions by `query_index_offset`; shifting keys too preserves all distances."""
        return pos + self.query_index_offset

    def prepare(self, params: Params, end: float = 1.0) -> Params:
        """For a ReLU MLP, add f up to `end` as a sum of hinges, and its number of kinks."""
        if self.activation != "relu" or "hinges" in params:
            return params
        f, kinks = hinges(params["mlp"], MAX_KINKS[-1], end)
        return {**params, "hinges": f, "kinks": kinks}

    def diagnostics(self, params: Params) -> dict[str, jax.Array]:
        """Return a ReLU MLP's number of kinks, and whether it is too large for hinges (1 or 0)."""
        params = self.prepare(params)
        if "kinks" not in params:
            return {}
        kinks = params["kinks"].astype(jnp.float32)
        return {"fire_kinks": kinks, "fire_dense": (kinks > MAX_KINKS[-1]).astype(jnp.float32)}

    def explain_nan(self, diagnostics: Mapping[str, float]) -> str | None:
        if not diagnostics.get("fire_dense") or self.translation_invariant:
            return None
        return (
            f"FIRE's MLP has {diagnostics['fire_kinks']:.0f} kinks in a layer, but the TPU kernel "
            f"supports at most {MAX_KINKS[-1]}: rerun with "
            "--gin.build_decoder.attention=\"'blockwise'\" (to continue a "
            "run, also --allow_config_change) to evaluate the MLP without this limit"
        )

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        """Return |c| and |L| of Eq. 4 and gamma of FIRE-G, except for scalars that are fixed."""
        learned = {}
        if "c" in params:
            learned["c"] = jnp.abs(params["c"])
        if "L_multiplier" in params:
            learned["L"] = jnp.abs(self._threshold(params))
        if "gamma" in params:
            learned["gamma"] = params["gamma"]
        return learned

    def _f(self, params: Params, x_BTS: jax.Array) -> jax.Array:
        """Return f_theta `[N, B, T, S]`, which is a straight line beyond 1.

        It is computed with as few hinges as possible, or with the MLP if it has no hinges or too
        many kinks. Without a limit, only masked keys have an x above 1, so the MLP alone is enough.
        """
        activation = ACTIVATIONS[self.activation]

        @jax.checkpoint  # otherwise every branch would save the intermediate values of the MLP
        def dense(params: Params, x_BTS: jax.Array) -> jax.Array:
            f = functools.partial(mlp, params["mlp"], activation=activation)
            out_BTSN = f(x_BTS) if self.last_position is None else straight_beyond_1(f, x_BTS)
            return jnp.moveaxis(out_BTSN, -1, 0)

        def bent(params: Params, x_BTS: jax.Array, kinks: int) -> jax.Array:
            return evaluate(first(params["hinges"], kinks), x_BTS)

        if "hinges" not in params:
            out = dense(params, x_BTS)
        else:
            forms = [functools.partial(bent, kinks=kinks) for kinks in MAX_KINKS]
            enough = jnp.sum((params["kinks"] > jnp.array(MAX_KINKS)).astype(jnp.int32))
            out = jax.lax.switch(enough, [*forms, dense], params, x_BTS)
        return activation(out) if self.final_activation else out

    def _prepare_warm_start(self) -> None:
        form = (self.hidden_layers > 0, self.activation, self.final_activation, self.transform)
        if form != (True, "relu", False, "log") or not self.threshold:
            raise UserError(
                "FIRE.init_as needs hidden layers, activation 'relu', transform 'log', a threshold "
                "and no final activation"
            )
        encoding = self.init_as
        if not isinstance(encoding, PositionalEncoding):
            assert encoding is not None
            try:
                encoding = encoding(**self.model_shape)
            except RecursionError:
                raise UserError("FIRE.init_as is FIRE itself: choose another encoding") from None
            # Identical settings must yield equal instances of FIRE.
            object.__setattr__(self, "init_as", encoding)
        name = type(encoding).__name__
        if not encoding.acts_through("bias") or encoding.integer_positions:
            raise UserError(
                f"FIRE.init_as: {name} has no bias at positions between integers: choose another "
                "encoding, such as @KERPLELog"
            )
        gap = self.warm_start_gap(jax.random.key(0))
        if gap > 0.05:
            raise UserError(
                f"FIRE.init_as: f deviates from {name} by {gap:.0%} of its range\nchoose a "
                "FIRE.init_c whose logarithm has a similar curvature (1 for KERPLE-log, 0.01 for "
                "ALiBi), or a larger FIRE.width"
            )

    def warm_start_gap(self, rng: jax.Array) -> float:
        """Return the largest relative error of the initial biases on 0 <= i - j <= i <= L.

        The error of each head is relative to the range of its biases; the result is the maximum
        over the heads. `init_as` draws its parameters from `rng`, as it does in `init`.
        """
        assert isinstance(self.init_as, PositionalEncoding)
        length = math.floor(self.initial_L) + 1
        q_pos, k_pos = jnp.array([[length - 1]]), jnp.arange(length)[None]
        wanted = self.init_as.bias(self.init_as.init(rng), q_pos, k_pos, length)
        assert wanted is not None
        error = jnp.abs(self.bias(self.init(rng), q_pos, k_pos, length) - wanted)
        return float(jnp.max(jnp.max(error, axis=3) / jnp.ptp(wanted, axis=3)))

    def _values_to_start_from(self, rng: jax.Array) -> jax.Array:
        """Return the biases `[K, N]` of the initial state of `init_as` at the knots of f."""
        assert isinstance(self.init_as, PositionalEncoding)
        c, L = self.init_c, self.initial_L
        # Solve psi(d) = x psi(L) for the distance d.
        distance_K = np.expm1(knots(self.width) * np.log1p(c * L)) / c
        q_pos_BT, k_pos_BS = jnp.float32([[L]]), jnp.float32((L - distance_K)[None])
        params = self.init_as.init(rng)
        bias = self.init_as.bias(params, q_pos_BT, k_pos_BS, self.train_length)
        assert bias is not None
        return bias[0, :, 0].T

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        return self.bias_of_prepared(self.prepare(params), q_pos_BT, k_pos_BS)

    def bias_of_prepared(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array
    ) -> jax.Array:
        """Return `bias`, with f as hinges if `params` contains them, and otherwise as the MLP."""
        psi, L = self._psi(params), self._threshold(params)
        q_pos_BT, k_pos_BS = self._counted(q_pos_BT), self._counted(k_pos_BS)
        x_BTS = normalized_distance(q_pos_BT, k_pos_BS, psi, L, self.epsilon, self.last_position)
        bias_BNTS = jnp.moveaxis(self._f(params, x_BTS), 0, 1)
        if "gamma" in params:
            gain_BT = length_gain(q_pos_BT, psi, L, params["gamma"], self.last_position)
            bias_BNTS = gain_BT[:, None, :, None] * bias_BNTS
        return bias_BNTS


@dataclasses.dataclass(frozen=True)
class _BidirectionalFIRE(PositionalEncoding):
    """FIRE in encoders, as in the listing of Appendix E: |i - j| over the query's normaliser.

    For keys after the query, the argument of f may exceed 1. There, f is the MLP, too, or with a
    frozen normaliser a straight line, as beyond its limit.
    """

    causal: FIRE

    @property
    def title(self) -> str:
        return f"bidirectional {self.causal.title}"

    @property
    def causal_form(self) -> FIRE:
        return self.causal

    def init(self, rng: jax.Array) -> Params:
        return self.causal.init(rng)

    def prepare(self, params: Params) -> Params:
        frozen = self.causal.last_position is not None
        return self.causal.prepare(params, end=1.0 if frozen else math.inf)

    def diagnostics(self, params: Params) -> dict[str, jax.Array]:
        return self.causal.diagnostics(self.prepare(params))

    def learned_scalars(self, params: Params) -> dict[str, jax.Array]:
        return self.causal.learned_scalars(params)

    @property
    def translation_invariant(self) -> bool:
        return self.causal.translation_invariant

    def bias(
        self, params: Params, q_pos_BT: jax.Array, k_pos_BS: jax.Array, context_length: int
    ) -> jax.Array:
        return self.causal.bias_of_prepared(self.prepare(params), q_pos_BT, k_pos_BS)
