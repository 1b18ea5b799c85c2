"""The settings of a pretraining run as a dataclass, which gin configures as `pretrain`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
import optax
from jax.sharding import AbstractMesh, Mesh

from fire_lm import sharding
from fire_lm.checkpoints import Checkpointing
from fire_lm.data import TrainingSource
from fire_lm.errors import UserError
from fire_lm.models import Decoder, parameter_shapes
from fire_lm.results.trackers import Tracker
from fire_lm.sharding import MeshShape, of_rows, slices_of_rows
from fire_lm.training.averages import averaged
from fire_lm.training.compile import abstract_state, compile_training
from fire_lm.training.length_schedule import LengthSchedule, in_words, length_schedule
from fire_lm.training.optimizer import Chain, Optimizer
from fire_lm.training.spikes import Spikes
from fire_lm.training.step import TrainState
from fire_lm.training.summary import model_flops_per_token
from fire_lm.training.trial_update import check_optimizer
from fire_lm.training.watchdog import Watchdog


class Evaluation(Protocol):
    """The value of `pretrain.evaluation`: a frozen dataclass with these methods and attributes.

    Attributes:
      lengths: The lengths of the rows that it scores, in tokens.
      every: The number of steps between two evaluations; there is another after the last step.
    """

    @property
    def lengths(self) -> tuple[int, ...]: ...

    @property
    def every(self) -> int: ...

    def check(self, run: Pretraining) -> str:
        """Return a description of the evaluation of a run, without compiling programs.

        Raises:
          UserError: The run cannot be evaluated.
        """
        ...

    def open(self, run: Pretraining, mesh: Mesh) -> Callable[[Any], Mapping[str, float]]:
        """Prepare the evaluation of a run, for example by compiling programs.

        Returns:
          A function of the parameters that returns values to log, by name. All processes call it.

        Raises:
          UserError: The run cannot be evaluated.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """The settings of a run, independent of where or when it runs.

    Attributes:
      model: The model to train.
      data: The text or the task to train on.
      checkpoints: When to save checkpoints, and which checkpoints to keep.
      train_steps, batch_size, train_length: The numbers of updates, of sequences per update and of
        tokens per sequence; synthetic tasks also have shorter sequences. With `train_lengths`, the
        batch size and the length are those of the first length.
      optimizer: The optimizer, or a list of optimizers to be chained.
      seed: The seed for the parameters, the order of the data, resampled positions, dropout and
        lengths that are drawn.
      train_lengths: Entries (start, length) of a length schedule: from this step on, or this share
        of the steps, sequences have this length or, if it is a tuple, a length that each step draws
        from it. Every step has as many tokens as a batch of the first length. Empty means
        `train_length` throughout.
      mesh: The numbers of devices along the axes data, fsdp, tensor and sequence.
      microbatches: The number of parts into which each batch is split to accumulate its gradient.
      overlap_gathers: Whether TPUs gather parameters along the axis fsdp while they compute
        products. On other devices, this has no effect.
      z_loss: The weight of log(Z)^2 in the objective, where log(Z) is the log normaliser.
      ema_decay: The decay rate of an exponential moving average of the parameters (see
        averages.py), which evaluation, export and INIT_FROM use instead of the parameters; None
        averages nothing.
      log_every: The number of steps between two lines of metrics.
      watchdog: The conditions under which the run counts as stuck.
      spikes: How the run handles a loss that is not finite or that jumps.
      trackers: Experiment trackers, in addition to `metrics.jsonl` and TensorBoard.
      evaluation: What is computed from the parameters while the run trains, if anything.
      init_from: `RUN[@STEP]`, the checkpoint that provides the initial parameters, or "". The run
        starts at step 0 with a fresh optimizer state.
      init_allow_missing: Patterns of the paths of parameters that the checkpoint may lack.
      init_allow_unused: Patterns of the paths of extra parameters that the checkpoint may have.

    Raises:
      UserError: A setting is invalid, whatever the devices and the data.
    """

    configurable: ClassVar[str] = "pretrain"  # the name by which gin binds the settings
    paths: ClassVar[dict[str, str]] = {"init_from": "run"}
    # The parameters that do not affect what is trained, so a run may resume with other values.
    observing: ClassVar[tuple[str, ...]] = ("overlap_gathers", "trackers", "evaluation")

    model: Decoder
    data: TrainingSource
    optimizer: Optimizer | tuple[Optimizer, ...]
    checkpoints: Checkpointing
    train_steps: int
    batch_size: int
    train_length: int
    seed: int
    train_lengths: tuple[tuple[int | float, int | tuple[int, ...]], ...] = ()
    mesh: MeshShape = MeshShape()
    microbatches: int = 1
    overlap_gathers: bool = False
    z_loss: float = 0.0
    ema_decay: float | None = None
    log_every: int = 100
    watchdog: Watchdog = Watchdog()
    spikes: Spikes = Spikes()
    trackers: tuple[Tracker, ...] = ()
    evaluation: Evaluation | None = None
    init_from: str = ""
    init_allow_missing: tuple[str, ...] = ()
    init_allow_unused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("train_steps", "batch_size", "train_length", "microbatches", "log_every"):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"{name} is {value}: it must be 1 or more")
            if value >= 2**31:  # steps and the tokens of a row are counted in int32
                raise UserError(f"{name} is {value}: it must be less than {2**31}")
        if self.train_length < 2:  # the first token predicts the second
            raise UserError(f"TRAIN_LENGTH is {self.train_length}: it must be 2 or more")
        if not 0 <= self.seed < 2**32:  # jax.random.key uses only the lower bits of larger seeds
            raise UserError(f"SEED is {self.seed}: it must be 0 or more, and less than {2**32}")
        if not 0 <= self.z_loss < math.inf:
            raise UserError(f"z_loss is {self.z_loss}: it must be 0 or more, and finite")
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(f"ema_decay is {self.ema_decay}: it must be 0 or more, and less than 1")
        if self.optimizer == ():
            raise UserError(f"{self.configurable}.optimizer is an empty list: add an optimizer")
        if not self.data.both_directions and not self.model.causal:
            raise UserError(
                f"{self.configurable}.model is an encoder, which would see the tokens of "
                f"{self.data.title} that it predicts: train it on @MaskedText(), or on a synthetic "
                "task with Synthetic.layout = 'slots'"
            )
        self._check_lengths()
        # With INIT_FROM, an encoding may keep a shorter training length, so check this run's length
        # here.
        longest = self.lengths.longest
        for encoding in self.model.encodings:
            encoding.check_length(self.model.resampling.largest(longest), longest)

    def _check_lengths(self) -> None:
        """Raise UserError if the length schedule does not fit the batch or the data."""
        lengths = self.lengths
        if lengths.first != self.train_length:
            raise UserError(
                f"TRAIN_LENGTHS begins at length {lengths.first}, but TRAIN_LENGTH is "
                f"{self.train_length}: add --gin.TRAIN_LENGTH={lengths.first}, the length from "
                "which encodings derive their values"
            )
        if self.tokens_per_step % lengths.longest:
            raise UserError(
                f"BATCH_SIZE is {self.batch_size}: at length {lengths.longest} of TRAIN_LENGTHS, "
                f"the {self.tokens_per_step:,} tokens of a step fill no whole number of sequences; "
                f"make BATCH_SIZE a multiple of {lengths.longest // self.train_length}"
            )
        if not lengths.constant and not self.data.divisible:
            raise UserError(
                f"TRAIN_LENGTHS has several lengths, but {self.data.title} is not text whose rows "
                "can be cut into shorter ones: set TRAIN_LENGTH only"
            )

    def check_batches(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise UserError if a batch of any length cannot be divided among the devices."""
        longest = self.lengths.longest  # batches of shorter rows have a multiple of its rows
        where = "" if self.lengths.constant else f"at length {longest} of TRAIN_LENGTHS, "
        rows, times = self.rows_per_step(longest), longest // self.train_length
        sharding.check_batch(rows, self.microbatches, mesh, where, times)

    @functools.cached_property
    def lengths(self) -> LengthSchedule:
        """The length of the rows in each step, if `data` has no shorter rows by itself."""
        entries = self.train_lengths or ((0, self.train_length),)
        return length_schedule(entries, self.train_steps, self.seed)

    @property
    def lengths_in_words(self) -> str:
        """The length or lengths, such as "64" or "64, then 256 after 95 %"."""
        return in_words(self.train_lengths or ((0, self.train_length),))

    @property
    def trained_length(self) -> int:
        """The longest length that the run reaches, beyond which a model must generalise."""
        return self.lengths.after(0)[-1]

    def at_length(self, length: int) -> Pretraining:
        """Return a run of constant length whose training step is that of this run at `length`."""
        rows = self.rows_per_step(length)
        return dataclasses.replace(self, batch_size=rows, train_length=length, train_lengths=())

    def row_lengths(self, after: int = 0) -> tuple[int, ...]:
        """Return the numbers of tokens that rows can have after a step, in increasing order."""
        if self.lengths.constant:
            return self.data.row_lengths(self.train_length)
        return self.lengths.after(after)

    def rows_per_step(self, row_length: int) -> int:
        """Return the number of rows in a batch of rows with this number of tokens."""
        if self.lengths.constant:
            return self.batch_size
        return self.tokens_per_step // row_length

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.train_length

    @property
    def flops_per_token(self) -> float:
        """The training FLOPs per token under `FLOPS_CONVENTION`, as a mean over the run's steps."""
        shares = self.lengths.shares(self.train_steps).items()
        return sum(self.flops_per_token_at(length) * share for length, share in shares)

    def flops_per_token_at(self, length: int) -> float:
        """Return the training FLOPs per token in rows of `length` tokens."""
        return model_flops_per_token(self.model, parameter_shapes(self.model), length)

    @property
    def _optimizer(self) -> Optimizer:
        return Chain(self.optimizer) if isinstance(self.optimizer, tuple) else self.optimizer

    def transformation(self) -> optax.GradientTransformation:
        """Return the optimizer, including the average of the parameters if there is one."""
        optimizer = self._optimizer.build(self.train_steps)
        return optimizer if self.ema_decay is None else averaged(optimizer, self.ema_decay)

    def check_optimizer(self) -> None:
        """Raise UserError if a run cannot use the optimizer (see trial_update.py)."""
        name = f"{self.configurable}.optimizer"
        check_optimizer(self._optimizer, self.train_steps, parameter_shapes(self.model), name)

    def check_rows(self, mesh: Mesh | AbstractMesh) -> None:
        """Raise UserError if rows cannot be split as `mesh` has it (see `sharding.of_rows`)."""
        for length in (*self.row_lengths(), *(self.evaluation.lengths if self.evaluation else ())):
            of_rows(mesh, length)
        self.model.check_slices(slices_of_rows(mesh))

    def schedule(self) -> optax.Schedule:
        """Return the learning rate as a function of the number of updates done."""
        schedule = self._optimizer.schedule(self.train_steps)
        assert schedule is not None, "check_optimizer refuses an optimizer without a learning rate"
        return schedule

    def abstract_state(self) -> TrainState:
        """Return the shapes and dtypes of the state that the run trains and saves."""
        return abstract_state(self.model, self.transformation())

    def compile(self, mesh: Mesh, row_length: int | None = None) -> jax.stages.Compiled:
        """Compile the training step for the devices of `mesh`.

        `row_length` is the number of tokens in the rows of a batch, by default `train_length`.
        """
        return compile_training(
            self.model,
            self.transformation(),
            mesh,
            packed=self.data.packed,
            unshifted=self.data.unshifted,
            batch_size=self.rows_per_step(row_length or self.train_length),
            row_length=row_length or self.train_length,
            z_loss=self.z_loss,
            microbatches=self.microbatches,
            spikes=self.spikes,
            overlap_gathers=self.overlap_gathers,
        )
