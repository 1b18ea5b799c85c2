"""The training loop, in chapters: mesh, data, state, step, train.

Running the same command again resumes from the newest checkpoint: the state, the place in the
data and the counters come back, so that the continued run is bit-equal to an uninterrupted one on
the same machine shape.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from fire_lm import data as data_layer
from fire_lm import sharding
from fire_lm.checkpoints import Checkpointing, Checkpoints
from fire_lm.data import Data, unknown_warning
from fire_lm.errors import Preempted, RunFailed
from fire_lm.metrics import Progress, phase
from fire_lm.models import Decoder
from fire_lm.training.compile import abstract_state, compile_training, on_mesh
from fire_lm.training.goodput import COMPILE, DATA, DEVICES, SAVE, START, Goodput, table
from fire_lm.training.lock import only_writer
from fire_lm.training.optimizer import AdamW
from fire_lm.training.preemption import StopFlag, ctrl_c_saves, sigterm_flag
from fire_lm.training.reporter import Reporter, new_counters
from fire_lm.training.spikes import Spikes
from fire_lm.training.start import (
    check_reach,
    check_settings,
    check_vocabulary,
    ensure_writable,
    start_from,
)
from fire_lm.training.step import TrainState, init_state
from fire_lm.training.summary import describe, model_flops_per_token
from fire_lm.training.watchdog import Watch, Watchdog


def pretrain(
    *,
    workdir: str,
    model: Decoder,
    data: Data,
    optimizer: AdamW,
    checkpoints: Checkpointing,
    train_steps: int,
    batch_size: int,
    train_length: int,
    seed: int,
    mesh: sharding.MeshShape = sharding.MeshShape(),  # noqa: B008 (frozen)
    microbatches: int = 1,
    z_loss: float = 0.0,
    log_every: int = 100,
    watchdog: Watchdog = Watchdog(),  # noqa: B008 (frozen)
    spikes: Spikes = Spikes(),  # noqa: B008 (frozen)
    init_from: str = "",
    init_allow_missing: tuple[str, ...] = (),
    init_allow_unused: tuple[str, ...] = (),
    dry_run: bool,
    init_from_model: Callable[[], Decoder] | None,
    once_held: Callable[[], None] = lambda: None,
    before_first_step: Callable[[], None] = lambda: None,
    ranked: Callable[[], Sequence[int]] = lambda: (),
) -> None:
    """Trains `model` and leaves a run directory (docs/pretraining.md lists its files).

    Args:
      workdir: the run directory, local or gs://.
      train_steps, batch_size, train_length: updates, sequences per update, tokens per sequence.
      seed: of parameters and of the order of the data.
      mesh: devices along data, fsdp, tensor.
      microbatches: parts of a batch whose gradients are accumulated one after the other.
      z_loss: weight of log(Z)^2.
      log_every: steps between lines of metrics.
      watchdog: when a run counts as stuck.
      spikes: what happens at a loss that is not finite, or jumps.
      init_from: `RUN[@STEP]`, parameters to start from, with a fresh optimizer and step 0.
      init_allow_missing, init_allow_unused: path patterns that INIT_FROM may lack or leave over.
      dry_run: describe the run and stop, allocating nothing.
      init_from_model: the model of INIT_FROM's run, asked for if this run starts from it.
      once_held: called when no other process writes to the run directory any more; it may refuse
        what is there.
      before_first_step: called when everything is ready (the caller records the configuration).
      ranked: the steps that sweeps have scored, the best first, for `Checkpointing.keep_best`.

    Raises:
      UserError: a setting that cannot work. RunFailed: NaN, unreadable checkpoint or storage.
      Preempted: after a SIGTERM or a Ctrl-C, once the state is saved.
    """
    quiet = jax.process_index() != 0
    check_settings(
        train_steps=train_steps,
        batch_size=batch_size,
        train_length=train_length,
        microbatches=microbatches,
        log_every=log_every,
        seed=seed,
        z_loss=z_loss,
    )
    check_reach(model, train_length)

    # --- Mesh: where every array lives.
    planned_mesh = sharding.abstract_mesh(mesh)
    sharding.check_batch(batch_size, microbatches, planned_mesh)
    transformation = optimizer.build(train_steps)
    abstract = abstract_state(model, transformation)
    if not quiet:
        planned = sharding.with_shardings(abstract, planned_mesh)
        counts = {"batch_size": batch_size, "train_length": train_length}
        counts |= {"train_steps": train_steps, "microbatches": microbatches}
        print(describe(model, planned, planned_mesh, **counts), flush=True)
    if dry_run:
        return
    ensure_writable(workdir)
    with (
        Goodput(workdir, quiet) as goodput,
        watchdog.watching(workdir, goodput) as watch,
        only_writer(workdir) as still_ours,
        sigterm_flag() as stop,  # until the last save is on disk
        contextlib.closing(Checkpoints(workdir, checkpoints, ranked, still_ours)) as writer,
    ):
        once_held()
        with phase("verifying checkpoints", quiet):
            start = writer.recover()
        if start >= train_steps:
            if not quiet:
                print(f"nothing to do: {workdir} has step {start} of {train_steps}")
            return
        goodput.resumed(start)
        device_mesh = sharding.make_mesh(mesh)
        like = sharding.with_shardings(abstract, device_mesh)
        model = on_mesh(model, device_mesh)

        # --- Data: this process's slice of every batch.
        batches = open_text(data, model, device_mesh, train_length, batch_size, seed, quiet)

        # --- State: from where this run stopped, or fresh, or from another run.
        counters = new_counters()
        restored = None
        while start and restored is None:
            with phase(f"resuming from step {start}", quiet):
                restored = writer.restore(start, like)
            if restored is None:  # its arrays are damaged
                start = writer.recover()
                goodput.resumed(start)
        if restored is not None:
            state, position, info = restored
            batches.set_state(position)
            counters = {name: info.get(name, value) for name, value in counters.items()}
        else:
            with phase("initialising parameters", quiet):
                state = fresh_state(model, transformation, seed, like)
                if init_from:
                    allowed = (init_allow_missing, init_allow_unused)
                    source = init_from_model() if init_from_model is not None else None
                    state = start_from(state, init_from, *allowed, model, source)

        goodput.enter(COMPILE)

        # --- Step: compiled before the first batch, so that what follows is steady.
        with phase("compiling the training step", quiet):
            step_fn = compile_training(
                model,
                transformation,
                device_mesh,
                features=data.features,
                batch_size=batch_size,
                train_length=train_length,
                seed=seed,
                z_loss=z_loss,
                microbatches=microbatches,
                spikes=spikes,
            )
            sharding.wait_for_all("compiled")

        goodput.enter(START)

        # --- Train: the host works one step ahead of the metrics that it reads.
        still_ours()
        before_first_step()
        reporter = Reporter(
            workdir=workdir,
            start=start,
            train_steps=train_steps,
            log_every=log_every,
            schedule=optimizer.schedule(train_steps),
            flops=model_flops_per_token(model, abstract.params, train_length),
            counters=counters,
            spikes=spikes,
            goodput=goodput,
            newest_saved=writer.newest,
            quiet=quiet,
        )
        with contextlib.closing(reporter), ctrl_c_saves(stop):
            stopped = run_steps(
                step_fn, state, batches, device_mesh, writer, reporter, watch, goodput, spikes,
                stop, start, train_steps, checkpoints.save_every,
            )  # fmt: skip
    newest = writer.newest()
    if stopped and not newest:
        raise Preempted(
            f"stopped by {stop.by} before any step was saved\nrun the same command to start over"
        )
    if stopped:
        raise Preempted(
            f"stopped by {stop.by} after step {newest}, which is saved\nthe same command resumes"
        )
    if newest < train_steps:
        raise RunFailed(
            f"the loss of step {train_steps} is not finite, so it is not saved; the newest "
            f"checkpoint is {newest}\nmore TRAIN_STEPS go on from there"
        )
    if not quiet:
        print(f"done: {train_steps} steps, run in {workdir}\n{table(workdir)}", flush=True)


def open_text(
    data: Data, model: Decoder, mesh: Mesh, length: int, batch_size: int, seed: int, quiet: bool
) -> data_layer.TrainIterator:
    """This process's slice of every batch of `batch_size`; says which text it is."""
    with phase("opening the data", quiet):
        check_vocabulary(data, model.vocab_size)
        unknown = 0.0 if quiet else data_layer.unknown_share(data, "train")
        index, count = sharding.process_shard(mesh, jax.process_index())
        batches = data_layer.train_iterator(
            data,
            length=length,
            batch_size=batch_size // count,
            seed=seed,
            shard_index=index,
            shard_count=count,
        )
    batches.on_rows = rows_shown(quiet)
    if not quiet:
        print(f"data: {batches.description}", flush=True)
        if warning := unknown_warning(unknown, "train", data):
            print(warning, flush=True)
    return batches


def rows_shown(quiet: bool) -> Callable[[int, int], None]:
    """Shows how much of the shuffle buffer is filled, where that takes more than a few seconds: few
    long documents fill a large one slowly, with many epochs of them."""
    bars: list[Progress] = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(Progress(total, quiet=quiet, patient=True))
        bars[0].show(
            done, "rows to shuffle among (a smaller TextData.shuffle_buffer starts sooner)"
        )
        if done >= total:
            bars.pop().close()

    return show


def fresh_state(
    model: Decoder, optimizer: optax.GradientTransformation, seed: int, like: TrainState
) -> TrainState:
    """Step 0, sharded as `like`."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    init = functools.partial(init_state, model, optimizer)
    return jax.jit(init, out_shardings=shardings)(jax.random.key(seed))


def run_steps(
    step_fn: Callable[..., Any],
    state: TrainState,
    batches: data_layer.TrainIterator,
    mesh: Mesh,
    writer: Checkpoints,
    reporter: Reporter,
    watch: Watch,
    goodput: Goodput,
    spikes: Spikes,
    stop: StopFlag,
    start: int,
    train_steps: int,
    save_every: int,
) -> bool:
    """Steps `start + 1` to `train_steps`, or until SIGTERM or Ctrl-C; whether that came. The last
    step is saved, but none whose loss is not finite: what made it so may be in the state."""
    due = False
    for step in range(start + 1, train_steps + 1):
        goodput.enter(DATA)
        batch = next(batches)
        skipped = int(batch.pop("skipped"))
        goodput.enter(DEVICES)
        limit = spikes.skip_above(reporter.counters["recent_losses"])
        guard = spikes.guard(sharding.put_scalar(limit, mesh))
        state, metrics = step_fn(state, sharding.put_batch(batch, mesh), *guard)
        reporter.pending(step, metrics, skipped)
        watch.finished(step)
        stopping = stop.requested or writer.reached_preemption(step)
        due = due or step % save_every == 0 or step == train_steps or stopping
        if due:
            reporter.flush()  # never save a step whose loss is not known to be finite
            if reporter.sound:
                goodput.enter(SAVE)
                goodput.write()  # tells a run directory that is gone; a save would make a new one
                writer.save(
                    step,
                    state,
                    batches.get_state(),
                    reporter.counters,
                    shared_position=batches.shared_state,
                )
                goodput.saved(step)
                watch.saved()
                reporter.upload()
                due = False
        if stopping:
            return True
    return False
