"""The training loop, in four sections: data, state, step, train.

Running the same command again resumes from the newest checkpoint. The state, the position in the
data and the counters are restored, so a run that resumes on hardware of the same kind and shape is
bit-identical to an uninterrupted run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fire_lm import data as data_layer
from fire_lm import sharding
from fire_lm.checkpoints import Checkpoints, array_paths, evaluation_params
from fire_lm.console import Progress, phase
from fire_lm.data import cut, unknown_warning
from fire_lm.errors import Preempted, RunFailed, UserError
from fire_lm.hardware.jax_settings import check_same_precision, precision
from fire_lm.models import Decoder, check_token_ids
from fire_lm.processes import wait_for_all
from fire_lm.storage import removing_new_folders
from fire_lm.training.averages import as_configured, as_saved
from fire_lm.training.compile import on_mesh
from fire_lm.training.description import describe
from fire_lm.training.goodput import COMPILE, DATA, DEVICES, EVALUATION, SAVE, START, Goodput, table
from fire_lm.training.lock import Held, only_writer
from fire_lm.training.memory import check_before_compiling, check_compiled
from fire_lm.training.preemption import StopFlag, ctrl_c_saves, sigterm_flag
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.reporter import Reporter, new_counters
from fire_lm.training.start import check_vocabulary, ensure_writable, start_from
from fire_lm.training.step import Batch, Metrics, TrainState, init_state
from fire_lm.training.watchdog import Watch

_LOGS_SECONDS = 240.0  # the time for the upload of all logs, with attempts that fail


@dataclasses.dataclass(frozen=True)
class Job:
    """The resources that a process uses while it trains in a run directory, local or gs://.

    `quiet` is True on every process except process 0. SIGTERM or Ctrl-C sets the flag `stop` if the
    job has a single process. `still_ours` is the lock of the run directory, which another process
    may have taken over.
    """

    workdir: str
    quiet: bool
    goodput: Goodput
    watch: Watch
    stop: StopFlag
    checkpoints: Checkpoints
    still_ours: Held


def pretrain(
    run: Pretraining,
    workdir: str,
    *,
    model_of_source: Callable[[], Decoder] | None = None,
    once_held: Callable[[], None] = lambda: None,
    after_first_step: Callable[[int], None] = lambda _: None,
    ranked: Callable[[], Sequence[int]] = lambda: (),
    heading: str = "",
    since: float | None = None,
) -> None:
    """Train or resume `run` in a run directory (docs/pretraining.md lists its files).

    Args:
      workdir: The run directory, local or gs://.
      model_of_source: A function that returns the model of the run in `run.init_from`. It is called
        only if the run starts from another run, and at step 0.
      once_held: A function that is called once the run directory is locked, and that may raise an
        error about the directory's contents.
      after_first_step: A function that is called when the first step of this start is complete, for
        example to record the configuration, with the step from which the run resumed. A start that
        fails earlier leaves the run directory as it was.
      ranked: A function that returns the evaluated steps, starting with the best, for
        `Checkpointing.keep_best`.
      heading: Text to print before the description of the run. Both are printed once the data is
        open, so that most errors are not preceded by pages of settings.
      since: The value of `time.monotonic` at which this start began; None means now.

    Raises:
      UserError: A setting is invalid, or does not fit the devices, the data or the run directory.
      RunFailed: The run stopped because of its loss or gradient (see `Spikes`), or a checkpoint or
        the storage cannot be read or written.
      Preempted: SIGTERM or Ctrl-C stopped the run before its last step was saved. The last step
        that was run has been saved unless its loss or gradient is not finite.
    """
    description = describe(run)  # on every process, so that all of them raise any error
    with removing_new_folders(workdir), job_in(workdir, run, ranked, since) as job:
        once_held()
        with phase("verifying checkpoints", job.quiet):
            start = job.checkpoints.recover()
        if start >= run.train_steps:
            if not job.quiet:
                print(f"nothing to do: {workdir} has reached step {start} of {run.train_steps}")
            return
        stopped = train(
            run, job, start, model_of_source, after_first_step, f"{heading}{description}"
        )
    newest = job.checkpoints.newest()
    if stopped and newest < run.train_steps:
        saved = f"after step {newest}, which is saved\nrun the same command to resume"
        unsaved = "before any step was saved\nrun the same command to start over"
        raise Preempted(f"stopped by {job.stop.by} {saved if newest else unsaved}")
    if newest < run.train_steps:
        raise RunFailed(
            f"the loss or gradient of step {run.train_steps} is not finite, so this step was not "
            "saved\n"
            f"to continue from the newest checkpoint, {newest}, raise TRAIN_STEPS",
            everywhere=True,
        )
    if not job.quiet:
        print(f"done: {run.train_steps} steps in {workdir}\n{table(workdir)}", flush=True)


@contextlib.contextmanager
def job_in(
    workdir: str, run: Pretraining, ranked: Callable[[], Sequence[int]], since: float | None
) -> Iterator[Job]:
    """Yield the resources for training, with `workdir` locked until the last save is complete."""
    quiet = jax.process_index() != 0
    ensure_writable(workdir)
    with (
        Goodput(workdir, quiet, since) as goodput,
        run.watchdog.watching(workdir, goodput) as watch,
        only_writer(workdir) as still_ours,
        sigterm_flag() as stop,
        contextlib.closing(Checkpoints(workdir, run.checkpoints, ranked, still_ours)) as saves,
    ):
        yield Job(workdir, quiet, goodput, watch, stop, saves, still_ours)


def train(
    run: Pretraining,
    job: Job,
    start_step: int,
    model_of_source: Callable[[], Decoder] | None,
    after_first_step: Callable[[int], None],
    description: str,
) -> bool:
    """Train from `start_step` (0 or an intact step), and return whether a signal ended training."""
    job.goodput.resumed(start_step)
    mesh = sharding.make_mesh(run.mesh)
    check_before_compiling(run, mesh, max(run.row_lengths()))

    # --- Data: this process's slice of every batch.
    batches = open_data(run, mesh, job.quiet, description)

    # --- State: from this run's checkpoint, newly initialised, or from another run.
    start_step, state, counters = state_at(start_step, run, job, mesh, batches, model_of_source)
    # This fills any shuffle buffer, and refuses unfit data before the compilation and before
    # anything is saved. The first step has a time limit.
    first = next_batch(batches, run, start_step + 1)

    # --- Step: compiled before the first step, so that no step includes a compilation.
    job.goodput.enter(COMPILE)
    with phase("compiling the training step", job.quiet):
        evaluate = run.evaluation.open(run, mesh) if run.evaluation else None
        step_fn = compiled_for(run.row_lengths(start_step), run, mesh)
        wait_for_all("compiled")
    job.goodput.enter(START)

    # --- Train: the host dispatches each step before it reads the metrics of the previous step.
    job.still_ours()
    reporter = Reporter(
        run,
        job.workdir,
        start_step,
        counters=counters,
        goodput=job.goodput,
        newest_saved=job.checkpoints.newest,
        quiet=job.quiet,
        after_first_step=after_first_step,
    )
    try:
        with contextlib.closing(reporter), ctrl_c_saves(job.stop):
            return run_steps(
                run, job, reporter, batches, mesh, step_fn, state, start_step, first, evaluate
            )
    finally:
        # The launcher on each host looks for this step in the spike log, which process 0 uploads.
        if reporter.stopped:
            with contextlib.suppress(RunFailed):  # the loss is what the user must see
                wait_for_all("stopped", seconds=_LOGS_SECONDS)


def open_data(
    run: Pretraining, mesh: Mesh, quiet: bool, description: str
) -> data_layer.TrainIterator:
    """Open this process's slice of every batch, and print the descriptions of the run and the data.

    `description` is that of the run.
    """
    with phase("opening the data", quiet):
        check_vocabulary(run.data, run.model.vocab_size)
        unknown = 0.0 if quiet else run.data.unknown_share("train")
        index, count = sharding.process_shard(mesh, jax.process_index())
        batches = data_layer.train_iterator(
            run.data,
            length=run.lengths.longest,
            batch_size=run.rows_per_step(run.lengths.longest) // count,
            seed=run.seed,
            shard_index=index,
            shard_count=count,
        )
    batches.on_rows = buffer_progress(quiet)
    if not quiet:
        print(f"{description}\ndata: {batches.description}", flush=True)
        if warning := unknown_warning(unknown, "train", run.data):
            print(warning, flush=True)
    return batches


def buffer_progress(quiet: bool) -> Callable[[int, int], None]:
    """Return a callback that shows the progress of filling the shuffle buffer if this is slow.

    Filling a large buffer is slow if the text consists of only a few long documents, because it
    takes many epochs.
    """
    progress: list[Progress] = []

    def show(done: int, total: int) -> None:
        if not progress:
            progress.append(Progress(total, quiet=quiet, patient=True))
        progress[0].show(done, "rows in the shuffle buffer (a smaller shuffle_buffer fills faster)")
        if done >= total:
            progress.pop().close()

    return show


def state_at(
    start_step: int,
    run: Pretraining,
    job: Job,
    mesh: Mesh,
    batches: data_layer.TrainIterator,
    model_of_source: Callable[[], Decoder] | None,
) -> tuple[int, TrainState, dict[str, Any]]:
    """Return the step, state and counters to continue from, and move `batches` to that step."""
    like = sharding.with_shardings(run.abstract_state(), mesh)
    counters = new_counters()
    while start_step:
        with phase(f"resuming from step {start_step}", job.quiet):
            restored = restored_from(job.checkpoints, start_step, like)
        if restored is not None:
            state, position, info = restored
            check_same_precision(info)
            batches.set_state(position)
            return start_step, state, {name: info.get(name, old) for name, old in counters.items()}
        start_step = job.checkpoints.recover()  # the arrays of the newest checkpoint are damaged
        job.goodput.resumed(start_step)
    with phase("initialising parameters", job.quiet):
        state = fresh_state(run, mesh, like)
        if run.init_from:
            state = start_from(
                state, run, model_of_source() if model_of_source is not None else None
            )
    return 0, state, counters


def restored_from(
    checkpoints: Checkpoints, step: int, like: TrainState
) -> tuple[TrainState, bytes, dict[str, Any]] | None:
    """Return the result of `Checkpoints.restore`, even if the average was turned on or off."""
    try:
        restored = checkpoints.restore(step, like)
    except RunFailed:
        saved = as_saved(like, array_paths(checkpoints.workdir, step))
        if saved is like:
            raise
        restored = checkpoints.restore(step, saved)
    if restored is None:
        return None
    state, position, info = restored
    return as_configured(state, like), position, info


def compiled_for(
    row_lengths: Sequence[int], run: Pretraining, mesh: Mesh
) -> Callable[..., tuple[TrainState, Metrics]]:
    """Compile the training step for batches whose rows have any of these lengths.

    Raises:
      UserError: The memory does not suffice.
    """
    programs = {length: run.compile(mesh, length) for length in row_lengths}
    for length, program in programs.items():
        check_compiled(program, run, mesh, length)
    seed = sharding.put_scalar(np.uint32(run.seed), mesh)

    def step(state: TrainState, batch: Batch, *skip_above: jax.Array) -> tuple[TrainState, Metrics]:
        return programs[batch["targets"].shape[1]](state, batch, seed, *skip_above)

    return step


def fresh_state(run: Pretraining, mesh: Mesh, like: TrainState) -> TrainState:
    """Return a newly initialised state at step 0, with the shardings of `like`."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    init = functools.partial(init_state, on_mesh(run.model, mesh), run.transformation())
    return jax.jit(init, out_shardings=shardings)(jax.random.key(run.seed))


def next_batch(
    batches: data_layer.TrainIterator, run: Pretraining, step: int
) -> dict[str, np.ndarray]:
    """Return the batch of a step, whose ids must have rows in the embedding of the model.

    Raises:
      UserError: The data contains another id.
    """
    batch = next(batches)
    for name in batch.keys() & {"inputs", "targets"}:
        check_token_ids(batch[name], run.model.vocab_size, "the training data")
    return batch if run.lengths.constant else cut(batch, run.lengths.at(step))


def is_sound(metrics: Metrics) -> bool:
    """Wait for a step, and return whether its loss and its gradient are finite."""
    return bool(np.isfinite(jax.device_get([metrics["loss"], metrics["grad_norm"]])).all())


def run_steps(
    run: Pretraining,
    job: Job,
    reporter: Reporter,
    batches: data_layer.TrainIterator,
    mesh: Mesh,
    step_fn: Callable[..., Any],
    state: TrainState,
    start_step: int,
    first: dict[str, np.ndarray] | None = None,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
) -> bool:
    """Run the steps after `start_step`, and return whether SIGTERM or Ctrl-C ended training.

    `first` is the batch of the first of these steps, if it has already been read. The last step is
    saved unless its loss or gradient is not finite, because its state may then be invalid.
    `evaluate` is the function that `run.evaluation` has opened.
    """
    due = False
    for step in range(start_step + 1, run.train_steps + 1):
        job.still_ours.check()
        job.goodput.enter(DATA)
        try:
            batch, first = next_batch(batches, run, step) if first is None else first, None
        except (UserError, RunFailed):
            save_before(step, job, reporter, batches, state)
            raise
        job.goodput.enter(DEVICES)
        limit = np.float32(run.spikes.skip_above(reporter.recent_losses(step)))
        guard = [sharding.put_scalar(value, mesh) for value in run.spikes.guard(limit)]
        state, metrics = step_fn(state, sharding.put_batch(batch, mesh), *guard)
        reporter.pending(step, metrics, batches.skipped, batch["targets"].shape[1])
        last = step == run.train_steps
        due_to_score = run.evaluation and (last or step % run.evaluation.every == 0)
        scores = evaluate if due_to_score and is_sound(metrics) else None
        job.watch.finished(step)
        if scores is not None:
            job.goodput.enter(EVALUATION)
            reporter.evaluated(step, scores(evaluation_params(state.params, state.opt_state)))
            job.watch.saved()
        stopping = job.stop.requested or job.checkpoints.reached_preemption(step)
        due = due or step % run.checkpoints.save_every == 0 or last or stopping
        if due:
            reporter.flush()  # never save a step whose loss is not known to be finite
            if reporter.sound:
                save(job, reporter, batches, step, state)
                due = False
        if stopping:
            return True
    return False


def save_before(
    step: int, job: Job, reporter: Reporter, batches: data_layer.TrainIterator, state: TrainState
) -> None:
    """Save the state before a step whose batch cannot be read, unless it is saved or not sound.

    Nothing is saved if the position in the data might be another one, nor in a job of several
    processes, of which the others may have read their part of the batch.
    """
    if jax.process_count() > 1 or not batches.is_after(step - 1):
        return
    reporter.flush()
    if reporter.sound and step - 1 > job.checkpoints.newest():
        print(f"the batch of step {step} cannot be read: saving step {step - 1}", flush=True)
        save(job, reporter, batches, step - 1, state)


def save(
    job: Job, reporter: Reporter, batches: data_layer.TrainIterator, step: int, state: TrainState
) -> None:
    job.goodput.enter(SAVE)
    job.goodput.write()  # raises if the run directory was removed; a save would recreate it
    info = {**reporter.counters, **precision()}
    job.checkpoints.save(
        step, state, batches.get_state(), info, shared_position=batches.shared_state
    )
    job.goodput.saved(step)
    job.watch.saved()
    reporter.upload()
