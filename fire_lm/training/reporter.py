"""The reporter, which writes training metrics to the logs and the screen.

Metrics are read one step behind the device. `documents_skipped` is the number of documents skipped
in process 0's share of the text. `data_wait` is the fraction of the time since the last line of the
log that process 0 spent waiting for batches. `batch_hash` identifies the batches that the run has
seen since its first step, and their order. The scalars that an encoding learns (FIRE's c and L) are
logged for each layer ("L/layer_0"), with their values before the step.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from fire_lm.console import Progress
from fire_lm.errors import RunFailed
from fire_lm.hardware.flops import peak_flops
from fire_lm.models import explain_nan
from fire_lm.results.trackers import MetricsLog
from fire_lm.training.batch_hash import chained
from fire_lm.training.goodput import Goodput
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.spikes import SpikeLog, remember


def new_counters() -> dict[str, Any]:
    """Return the counters of a new run in the plain JSON form that checkpoints store.

    `largest` contains the maxima of the encoding's metrics since the last line of the log, and
    `recent_losses` contains the losses, since the last change of the length of rows, from which
    `Spikes` computes its limit.
    """
    return {
        "tokens": 0,
        "documents_skipped": 0,
        "updates_skipped": 0,
        "largest": {},
        "recent_losses": [],
        "batch_hash": "",
    }


class _Mark(NamedTuple):
    """The state at a line of the log, from which rates follow.

    `tokens` are those in losses so far, and `flops` those of this start so far, of whole rows.
    """

    seconds: float
    tokens: int
    flops: float
    step: int


class Reporter:
    """A reporter that reads each step's metrics while the next step runs, and stops a failing run.

    Attributes:
      counters: The counters of the run; see `new_counters`.
      sound: Whether the loss and the gradient of the last step that was read are finite.
      stopped: Whether the loss or the gradient of the last step that was read ends the run.
    """

    def __init__(
        self,
        run: Pretraining,
        workdir: str,
        start_step: int,
        *,
        counters: dict[str, Any],
        goodput: Goodput,
        newest_saved: Callable[[], int],
        quiet: bool,
        after_first_step: Callable[[int], None] = lambda _: None,
    ):
        self._run, self.counters = run, counters
        self._workdir, self._start, self._quiet = workdir, start_step, quiet
        self._after_first_step, self._begun = after_first_step, False
        self._log: MetricsLog | None = None
        self._spike_log: SpikeLog | None = None
        self._goodput, self._newest_saved = goodput, newest_saved
        self.sound, self.stopped = True, False
        self._progress = Progress(run.train_steps, quiet)
        self._schedule = run.schedule()
        self._flops_at = functools.cache(run.flops_per_token_at)
        self._peak = peak_flops(jax.devices()[0].device_kind)
        self._waiting: tuple[int, Any, int, int] | None = None
        self._read = start_step
        self._evaluated: dict[int, Mapping[str, float]] = {}
        self._flops = 0.0
        mark = _Mark(time.monotonic(), counters["tokens"], 0.0, start_step)
        self._marks = (mark, mark)  # of the log's last two lines

    def pending(self, step: int, metrics: Any, skipped: int, row_length: int) -> None:
        """Accept the metrics of a dispatched step, and read those of the previous step."""
        self.flush()
        self._waiting = (step, metrics, skipped, row_length)

    def evaluated(self, step: int, values: Mapping[str, float]) -> None:
        """Accept values of an evaluation after the dispatched step, which its line will have."""
        self._evaluated[step] = values

    def recent_losses(self, step: int) -> list[float]:
        """Return the losses from which the limit of a step follows.

        Losses of rows of another length do not count, so that a change of length is no spike. There
        are none, and therefore no limit, while steps draw their lengths.
        """
        phase = self._run.lengths.phase_of(step)
        known = self._read > phase.start and len(phase.lengths) == 1
        return self.counters["recent_losses"] if known else []

    def flush(self) -> None:
        """Read the metrics of the last dispatched step if they have not been read.

        Raises:
          RunFailed: More updates have been skipped than are allowed or, if none are allowed, the
            loss or gradient is not finite.
        """
        if self._waiting is None:
            return
        step, metrics, skipped, row_length = self._waiting
        self._waiting, self._read = None, step
        if step == self._run.lengths.phase_of(step).start + 1:
            self.counters["recent_losses"] = []
        on_host = jax.device_get(metrics)
        if not self._begun:
            self._begin()
        self.counters["batch_hash"] = chained(
            self.counters["batch_hash"], on_host.pop("batch_hash").tolist()
        )
        learned = {name: float(value) for name, value in on_host.pop("learned").items()}
        values = {name: float(value) for name, value in on_host.items()}
        skipped_update = values.pop("skipped", 0.0) > 0
        # A skipped update does not advance the optimizer's count of updates.
        updates = step - 1 - self.counters["updates_skipped"]
        self._judge(step, values, skipped_update)
        largest = self.counters["largest"]
        # A new dict is needed because a checkpoint that is being written may refer to the old one.
        self.counters["largest"] = {
            name: max(value, largest.get(name, value))
            for name, value in values.items()
            if name not in ("loss", "grad_norm", "tokens")
        }
        self.counters["tokens"] += int(values["tokens"])
        self.counters["documents_skipped"] += skipped
        if self._peak is not None:
            tokens = self._run.rows_per_step(row_length) * row_length
            self._flops += tokens * self._flops_at(row_length)
        due = step % self._run.log_every == 0 or step in (1, self._run.train_steps)
        if due or step in self._evaluated:
            self._write(step, values, updates, learned)

    def _begin(self) -> None:
        """Open the logs. A start that fails before its first step is complete writes no files."""
        self._after_first_step(self._start)
        self._goodput.begun = self._begun = True
        if not self._quiet:
            self._log = MetricsLog(self._workdir, self._start, self._run.trackers)
            self._spike_log = SpikeLog(self._workdir, self._start)

    def _judge(self, step: int, values: dict[str, float], skipped: bool) -> None:
        """Log the step if it is a spike or not finite, and raise RunFailed if the run must stop."""
        loss, gradient, losses = values["loss"], values["grad_norm"], self.recent_losses(step)
        finite = math.isfinite(loss) and math.isfinite(gradient)
        limit = self._run.spikes.limit(losses)
        self.counters["updates_skipped"] += skipped
        allowed, count = self._run.spikes.skips_allowed, self.counters["updates_skipped"]
        ends = count > allowed if skipped else not finite
        unsaved = step == self._run.train_steps and not finite  # a restart would repeat it
        self.stopped = ends or unsaved
        if (not finite or loss > limit or skipped) and self._spike_log is not None:
            facts = {"step": step, **values, "limit": limit, "skipped": skipped}
            # The launcher (tpu/host.py) reads this line and then does not restart the run, because
            # the run would fail at the same step again.
            self._spike_log.add({**facts, "stopped": True} if self.stopped else facts)
        self.sound = finite
        if finite and not skipped:
            self.counters["recent_losses"] = remember(losses, loss)
        if not ends:
            return
        name = "loss" if finite or not math.isfinite(loss) else "grad_norm"
        bound = (
            f"{count} updates have been skipped, more than Spikes.skips_allowed = {allowed}"
            if allowed
            else "to skip such updates, add --gin.Spikes.skips_allowed=10 --allow_config_change"
        )
        newest = self._newest_saved() or "none"
        reason = explain_nan(self._run.model, values, self._run.lengths.at(step))
        raise RunFailed(
            f"{name} is {values[name]} at step {step}: stopped\n"
            f"newest checkpoint with a finite loss: {newest}; {reason or bound}",
            everywhere=True,  # the metrics and counters of all processes are the same
        )

    def _write(
        self, step: int, values: dict[str, float], updates: int, learned: dict[str, float]
    ) -> None:
        """Log the step, before which the optimizer had made this number of updates."""
        tokens, (rate, flops_rate) = self.counters["tokens"], self._rates(step)
        logged: dict[str, float | str] = {
            "tokens": tokens,
            "loss": values["loss"],
            "grad_norm": values["grad_norm"],
            # Schedules compute on the device, after the step that was dispatched before, so the
            # rate is read only for lines of the log.
            "learning_rate": float(self._schedule(updates)),
            "tokens_per_second": rate,
            "documents_skipped": self.counters["documents_skipped"],
            "updates_skipped": self.counters["updates_skipped"],
            "batch_hash": self.counters["batch_hash"],
        }
        logged |= self._goodput.fractions()
        logged |= self.counters["largest"] | learned | self._evaluated.pop(step, {})
        self.counters["largest"] = {}
        if self._peak is not None:
            logged["mfu"] = flops_rate / (self._peak * jax.device_count())
        if self._log is not None:  # JSON has no NaN; the spike log records such values
            self._log.write(
                step, {n: x for n, x in logged.items() if isinstance(x, str) or math.isfinite(x)}
            )
        self._progress.show(step, f"loss {values['loss']:.4f}  {rate:,.0f} tokens/s")

    def upload(self) -> None:
        """If the log is in a bucket, start uploading its lines without waiting for the upload."""
        if self._log is not None:
            self._log.flush()

    def _rates(self, step: int) -> tuple[float, float]:
        """Return the tokens and the FLOPs per second since the log's last line.

        If that line is recent, they are since the line before it. Metrics are read one step behind
        the device, except those of the last step. These may be read at the same time as those of
        the step before, an interval too short for a rate.
        """
        before, last = self._marks
        now = _Mark(time.monotonic(), self.counters["tokens"], self._flops, step)
        short = step - last.step < max(2, self._run.log_every / 2) and last is not before
        then = before if short else last
        self._marks = (last, now)
        seconds = max(now.seconds - then.seconds, 1e-9)
        return (now.tokens - then.tokens) / seconds, (now.flops - then.flops) / seconds

    def close(self) -> None:
        self._progress.close()
        for log in (self._log, self._spike_log):
            if log is not None:
                log.close()
