"""The report of a command that ran out of memory although its programs seemed to fit."""

from __future__ import annotations

from collections.abc import Sequence

from fire_lm.errors import first_line

_TRAINING = "raise {verb}.microbatches, or lower BATCH_SIZE or TRAIN_LENGTH"
_REMEDIES = {
    "pretrain": _TRAINING,
    "finetune": _TRAINING,
    "sweep": "lower length_sweep.tokens_per_batch or EVAL_LENGTHS",
    "evaluate": "lower evaluate.batch_size, evaluate.tokens_per_batch or EVAL_LENGTHS",
    "generate": "lower --batch_size or --new_tokens, or shorten the prompts",
}


def is_out_of_memory(error: Exception) -> bool:
    """Return whether a device or this machine has too little memory for an array."""
    of_jax = type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")
    return isinstance(error, MemoryError) or (of_jax and "RESOURCE_EXHAUSTED" in str(error))


def out_of_memory(error: Exception, arguments: Sequence[str]) -> str:
    """Return a message with the settings of the verb that need less memory."""
    verb = next((argument for argument in arguments if argument in _REMEDIES), "")
    remedy = _REMEDIES.get(verb, "use a machine with more memory, or smaller inputs")
    return f"out of memory: {first_line(error)}\n{remedy.format(verb=verb)}"
