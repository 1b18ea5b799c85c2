"""The loss and the training step, as pure functions of state and batch.

A batch is `{"targets": int32 [B, T], "weights": int8 [B, T]}`, with `segment_ids` int32 `[B, T]`
if documents are packed. Each target is weighted by its entry of `weights`; the weight 0, which all
padding has, excludes the target. The model reads the targets shifted by one, unless the batch has
`inputs` int32 `[B, T]`. If the batch has `tokens` int32 `[B, 1]`, the number of tokens of each row
before its padding, positions are drawn for that many tokens.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from fire_lm.models import (
    Decoder,
    constrain_rows,
    diagnosed_losses,
    learned_scalars_by_layer,
    position_diagnostics,
    segment_positions,
)
from fire_lm.training.batch_hash import batch_hash

# Folded into the key of a step to draw dropout; the key itself draws the positions.
_DROPOUT = 2**32 - 1

Batch = dict[str, jax.Array]
Metrics = dict[str, Any]


@flax.struct.dataclass
class TrainState:
    """The state from which a run continues, except for its counters and position in the data."""

    step: jax.Array  # int32 []: the number of updates done
    params: Any
    opt_state: Any


def init_state(
    model: Decoder, optimizer: optax.GradientTransformation, rng: jax.Array
) -> TrainState:
    """Create the state at step 0.

    An input of one token suffices, because the shapes of parameters do not depend on its length.
    """
    tokens_BT = jnp.zeros((1, 1), jnp.int32)
    return fresh_state(model.init(rng, tokens_BT, tokens_BT)["params"], optimizer)


def fresh_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state at step 0 with the parameters `params`."""
    return TrainState(jnp.int32(0), params, optimizer.init(params))


def summed_loss(
    params: Any,
    model: Decoder,
    targets_BT: jax.Array,
    weight_BT: jax.Array,
    pos_BT: jax.Array,
    z_loss: float,
    segment_BT: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    inputs_BT: jax.Array | None = None,
) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
    """Return weighted sums over tokens: the objective, and the negative log likelihood.

    Both are float32 scalars, in nats. The objective of a token is its negative log likelihood plus
    `z_loss * log(Z)^2`. The mixers' diagnostics accompany the negative log likelihood.
    """
    weight_BT = weight_BT.astype(jnp.float32)
    nll_BT, log_z_BT, diagnostics = diagnosed_losses(
        model, params, targets_BT, pos_BT, segment_BT, dropout_rng, inputs_BT
    )
    nll = jnp.sum(nll_BT * weight_BT)
    return nll + z_loss * jnp.sum(jnp.square(log_z_BT) * weight_BT), (nll, diagnostics)


def documents(model: Decoder, batch: Batch) -> jax.Array | None:
    """Return the document of each token, int32 `[B, T]`, or None if that makes no difference.

    For a model that sees later tokens, padding after the `tokens` of a row is another document. The
    positions of padding do not matter, so rows still share their positions, and therefore the bias.
    """
    segment_BT = batch.get("segment_ids")
    if segment_BT is not None or model.causal:
        return segment_BT
    place_1T = jnp.arange(batch["targets"].shape[1])[None]
    return (place_1T < batch["tokens"]).astype(jnp.int32)


def split_microbatches(batch: Batch, microbatches: int) -> Batch:
    """Reshape `[B, T]` to `[microbatches, B / microbatches, T]`.

    A microbatch takes every `microbatches`-th row, so that rows stay on their devices.
    """
    return {
        name: x_BT.reshape(-1, microbatches, x_BT.shape[1]).swapaxes(0, 1)
        for name, x_BT in batch.items()
    }


def updates_of(
    optimizer: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any, loss: Any
) -> tuple[Any, Any]:
    """Return an optimizer's updates and its next state.

    An optimizer that takes more than gradients and parameters receives `loss`, the mean objective
    of the batch, as `value`, and its gradient as `grad`.
    """
    optimizer = optax.with_extra_args_support(optimizer)
    with jax.numpy_dtype_promotion("standard"):  # Optax multiplies floats by int32 counts
        return optimizer.update(grads, opt_state, params, value=loss, grad=grads)


def train_step(
    state: TrainState,
    batch: Batch,
    seed: int | jax.Array,
    skip_above: jax.Array | None = None,
    *,
    model: Decoder,
    optimizer: optax.GradientTransformation,
    z_loss: float,
    microbatches: int,
) -> tuple[TrainState, Metrics]:
    """Update the state with the mean gradient over the batch's tokens.

    `seed`, a uint32 scalar, determines the positions, if the model resamples positions, and the
    dropout masks; as an argument, it lets runs that differ in their seed share a compiled program.
    With `skip_above`, a float32 scalar, the update is skipped if the loss exceeds `skip_above`, or
    if the loss or the gradient is not finite; then only the step counter advances.

    The metrics are float32 scalars: `loss` (nats per token, without z-loss), `grad_norm` (before
    clipping), `tokens` (the sum of this batch's weights), `skipped` (1 if the update was skipped;
    only with `skip_above`) and the diagnostics of the encodings. They also contain `batch_hash`, a
    uint32 `[2]` hash of all arrays of the batch except the weights, and `learned`, a dict of the
    scalars of encodings and mixers before this update: learned ones, and the mixers' diagnostics of
    the batch.
    """
    tokens = jnp.sum(batch["weights"].astype(jnp.float32))
    rng = jax.random.fold_in(jax.random.key(seed), state.step)  # a restart repeats the same draws
    batch_size, length = batch["targets"].shape
    pos_BT = model.resampling.training_positions(rng, batch_size, length, batch.get("tokens"))
    if len(pos_BT) > 1:
        pos_BT = constrain_rows(pos_BT, model.activation_sharding)
    rows = batch if len(pos_BT) == 1 else {**batch, "positions": pos_BT}

    dropout_rngs = None
    if model.dropout or model.attention_dropout:
        dropout_rngs = jax.random.split(jax.random.fold_in(rng, _DROPOUT), microbatches)

    def gradient(part: Batch, dropout_rng: jax.Array | None) -> tuple[Any, Any]:
        own_BT = part.get("positions", pos_BT)
        if "segment_ids" in part:
            own_BT = segment_positions(own_BT, part["segment_ids"])
        return jax.value_and_grad(summed_loss, has_aux=True)(
            *(state.params, model, part["targets"], part["weights"], own_BT, z_loss),
            *(documents(model, part), dropout_rng, part.get("inputs")),
        )

    def accumulate(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, gradient(*part)), None

    if microbatches == 1:
        (objective, (nll, diagnostics)), grads = gradient(
            rows, None if dropout_rngs is None else dropout_rngs[0]
        )
    else:
        parts = (split_microbatches(rows, microbatches), dropout_rngs)
        first = jax.tree.map(lambda x: x[0], parts)
        sums, _ = jax.eval_shape(gradient, *first)
        zeros = (
            jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sums),
            jax.tree.map(jnp.zeros_like, state.params),
        )
        ((objective, (nll, diagnostics)), grads), _ = jax.lax.scan(accumulate, zeros, parts)
    divisor = jnp.maximum(tokens, 1.0)  # a batch that consists of padding has weight 0
    grads = jax.tree.map(lambda g: g / divisor, grads)
    updates, opt_state = updates_of(
        optimizer, grads, state.opt_state, state.params, objective / divisor
    )
    params = optax.apply_updates(state.params, updates)
    metrics = {"loss": nll / divisor, "grad_norm": optax.tree.norm(grads), "tokens": tokens}
    metrics |= position_diagnostics(model, state.params)
    learned = learned_scalars_by_layer(model, state.params)
    learned |= {name: value / microbatches for name, value in diagnostics.items()}
    metrics["batch_hash"] = batch_hash({k: x_BT for k, x_BT in batch.items() if k != "weights"})
    if skip_above is not None:
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["grad_norm"])
        keep = finite & (metrics["loss"] <= skip_above)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(keep, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        metrics["skipped"] = 1.0 - keep.astype(jnp.float32)
    return TrainState(state.step + 1, params, opt_state), {**metrics, "learned": learned}
