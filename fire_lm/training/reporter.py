"""Reads what the steps report, one step behind the device, and tells people and files.

`documents_skipped` counts those of process 0's share of the text. `data_wait` is the share of the
time since the last line that process 0 waited for batches. `batch_hash` tells which batches the run
has seen from its first step on, in which order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax

from fire_lm.errors import RunFailed
from fire_lm.metrics import MetricsLog, Progress, peak_flops
from fire_lm.training.batch_hash import chained


def new_counters() -> dict[str, Any]:
    """What a run counts, as its checkpoints keep it: plain JSON.

    `largest` holds the metrics of the encoding since the last line of the log.
    """
    return {"tokens": 0, "documents_skipped": 0, "largest": {}, "batch_hash": ""}


class Reporter:
    """Reads the metrics of each step once the next one is under way; stops a run gone wrong."""

    def __init__(
        self,
        *,
        workdir: str,
        start: int,
        train_steps: int,
        log_every: int,
        schedule: Callable[[Any], Any],
        flops: float,
        counters: dict[str, Any],
        data_seconds: Callable[[], float],
        quiet: bool,
    ):
        self._log = None if quiet else MetricsLog(workdir, start)
        self._progress = Progress(train_steps, start, quiet)
        self.last_saved = start
        self._last_step, self._log_every = train_steps, log_every
        self._schedule, self._flops, self.counters = schedule, flops, counters
        self._peak = peak_flops(jax.devices()[0].device_kind)
        self._waiting: tuple[int, Any, int] | None = None
        self._data_seconds = data_seconds
        self._since = (time.monotonic(), counters["tokens"], data_seconds())

    def pending(self, step: int, metrics: Any, skipped: int) -> None:
        """Hands over a dispatched step; its predecessor is read now."""
        self.flush()
        self._waiting = (step, metrics, skipped)

    def flush(self) -> None:
        """Reads the step that was handed over last."""
        if self._waiting is None:
            return
        step, metrics, skipped = self._waiting
        self._waiting = None
        found = jax.device_get(metrics)
        self.counters["batch_hash"] = chained(
            self.counters["batch_hash"], found.pop("batch_hash").tolist()
        )
        values = {name: float(value) for name, value in found.items()}
        for name in ("loss", "grad_norm"):
            if not math.isfinite(values[name]):
                kept = f"step {self.last_saved}" if self.last_saved else "none"
                raise RunFailed(
                    f"{name} is {values[name]} at step {step}: stopped\n"
                    f"last checkpoint saved with finite loss and gradient: {kept}"
                )
        largest = self.counters["largest"]
        # A new dict: a checkpoint that is still being written may hold the old one.
        self.counters["largest"] = {
            name: max(value, largest.get(name, value))
            for name, value in values.items()
            if name not in ("loss", "grad_norm", "tokens")
        }
        self.counters["tokens"] += int(values["tokens"])
        self.counters["documents_skipped"] += skipped
        if step % self._log_every == 0 or step in (1, self._last_step):
            self._write(step, values)

    def _write(self, step: int, values: dict[str, float]) -> None:
        now, tokens, waited = time.monotonic(), self.counters["tokens"], self._data_seconds()
        seconds = max(now - self._since[0], 1e-9)
        rate = (tokens - self._since[1]) / seconds
        data_wait = (waited - self._since[2]) / seconds
        self._since = (now, tokens, waited)
        logged: dict[str, float | str] = {
            "tokens": tokens,
            "loss": values["loss"],
            "grad_norm": values["grad_norm"],
            "learning_rate": float(self._schedule(step - 1)),
            "tokens_per_second": rate,
            "documents_skipped": self.counters["documents_skipped"],
            "data_wait": data_wait,
            "batch_hash": self.counters["batch_hash"],
        }
        logged |= self.counters["largest"]
        self.counters["largest"] = {}
        if self._peak is not None:
            logged["mfu"] = rate * self._flops / (self._peak * jax.device_count())
        if self._log is not None:
            self._log.write(step, logged)
        self._progress.show(step, f"loss {values['loss']:.4f}  {rate:,.0f} tokens/s")

    def close(self) -> None:
        self._progress.close()
        if self._log is not None:
            self._log.close()
