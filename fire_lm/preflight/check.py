"""Checks of a pod run's programs and files before TPUs are reserved."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np
from etils import epath
from jax.sharding import AbstractMesh, Mesh

from fire_lm import data as data_layer
from fire_lm import sharding
from fire_lm.attention import compiling_for
from fire_lm.console import phase
from fire_lm.errors import FireLMError, RunFailed, UserError, is_of_storage, reason
from fire_lm.hardware.slices import compiler_name
from fire_lm.measures import LengthSweep
from fire_lm.models import Decoder, explain_nan
from fire_lm.preflight import nearest_fit
from fire_lm.preflight.estimate import Costs, Estimate, Generation
from fire_lm.preflight.plan import check_plan
from fire_lm.preflight.programs import Compiler, DoesNotFit, Prompts
from fire_lm.preflight.report import FAILED, OK, SKIPPED, STEP, Check, Report
from fire_lm.sharding import MeshShape
from fire_lm.storage import in_bucket
from fire_lm.training import Pretraining, check_vocabulary, ensure_writable

GENERATION = "generation"
_Found = TypeVar("_Found", Estimate, Generation)


def preflight(
    compiler: Compiler,
    train: Pretraining,
    score: LengthSweep | None,
    lengths: Sequence[int],
    workdir: str,
    saved: Mapping[str, Callable[[], str]],
    prompts: Prompts | None = None,
) -> Report:
    """Compile the training step, the forward passes of a sweep and, given `prompts`, generation.

    The checks that take only seconds run first. Failed checks and programs that do not compile are
    recorded in the report.

    Args:
      score: The sweep, or None for a run that has no text to score.
      lengths: The lengths of the sweep to compile, unless the check of the sweep fails.
      workdir: The run directory, or "".
      saved: Functions that check saved files, keyed by the names of the checks. Each function
        returns a short description if the check passes, and otherwise raises an error.

    Raises:
      UserError: A setting cannot work on this slice.
    """
    check_plan(train, compiler.where)
    mesh = compiler.mesh(train.mesh)
    if score is not None:
        compiler.mesh(score.mesh)
    sharding.tree_shardings(train.abstract_state(), mesh)
    # The hosts of the slice divide every batch into this number of parts.
    _, parts = sharding.process_shard(mesh, mesh.devices.flat[0].process_index)
    libtpu = compiler_name()
    checks = list(check_surroundings(train, score, workdir, saved, parts))
    if not train.init_from:
        limits = checked(
            "attention kernel", lambda: check_limits(train.model, train.trained_length)
        )
        checks += [limits] * (limits.outcome == FAILED)
    if any(check.name == "sweep" and check.outcome == FAILED for check in checks):
        lengths = ()
    programs = compile_all(compiler, train, score, lengths)
    generation = None
    if prompts is not None:
        run = score or train
        generation = programs.add_generation(
            GENERATION, run.model, run.mesh, prompts, "a batch of "
        )
    if generation is not None:
        checks.append(check_token(generation))
    steps = training_steps(train)
    estimates = programs.estimates
    step = next((estimates[name] for name in steps if name in estimates), None)
    if step is not None and mesh.shape["fsdp"] > 1:
        checks.append(check_gathers(train, mesh, step))
    return Report(
        where=compiler.where,
        mesh=dict(mesh.shape),
        programs=estimates,
        flops=train.flops_per_token * train.tokens_per_step,
        tokens=train.tokens_per_step,
        failures=programs.failures,
        checks=checks,
        compiler=libtpu,
        generation=generation,
        steps={name: share for name, (_, share) in steps.items()},
        train_steps=train.train_steps,
    )


def training_steps(train: Pretraining) -> dict[str, tuple[Pretraining, float]]:
    """Return the programs of a run's training steps by name, in increasing order of length.

    Each is given as a run of constant length and the share of the steps that have this length.
    """
    if train.lengths.constant:
        return {STEP: (train, 1.0)}
    shares = train.lengths.shares(train.train_steps).items()
    return {f"{STEP} at {n}": (train.at_length(n), share) for n, share in shares if share}


@dataclasses.dataclass(frozen=True)
class Programs:
    """The programs that have been compiled for a slice.

    Attributes:
      estimates: The estimates, keyed by the name of the program.
      failures: The error of each program that does not compile. If a program does not fit in
        memory, its error also describes the nearest setting at which the program fits or, if none
        is found, what else to change.
    """

    compiler: Compiler
    estimates: dict[str, Estimate] = dataclasses.field(default_factory=dict)
    failures: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(
        self, name: str, compile: Callable[[], _Found], what_fits: Callable[[], str]
    ) -> _Found | None:
        """Return the result of `compile`, and record its estimate; if it fails, return None."""
        try:
            with phase(f"compiling the {name} for {self.compiler.where}", quiet=False):
                found = compile()
        except DoesNotFit as error:
            print("too large")
            self.failures[name] = f"{error}\n{checked('', what_fits).detail}"
            return None
        except FireLMError as error:
            self.failures[name] = str(error)
            return None
        self.estimates[name] = found.program if isinstance(found, Generation) else found
        return found

    def add_generation(
        self, name: str, model: Decoder, mesh: MeshShape, prompts: Prompts, setting: str
    ) -> Generation | None:
        """Compile the generation of `prompts`; see `nearest_fit.generation` for `setting`."""
        arguments = model, mesh, prompts
        return self.add(
            name,
            functools.partial(self.compiler.generation, *arguments),
            functools.partial(nearest_fit.generation, self.compiler, *arguments, setting),
        )


def compile_all(
    compiler: Compiler, train: Pretraining, score: LengthSweep | None, lengths: Sequence[int]
) -> Programs:
    """Compile the training step at every length, and the forward passes of the sweep."""
    programs = Programs(compiler)
    fewest = train.rows_per_step(train.lengths.longest)
    for name, (run, _) in training_steps(train).items():
        programs.add(
            name,
            functools.partial(compiler.training, run),
            functools.partial(nearest_fit.training, compiler, run, fewest),
        )
    if score is not None:
        for length in lengths:
            programs.add(
                f"sweep at {length}",
                functools.partial(compiler.scoring, score, length),
                functools.partial(nearest_fit.scoring, compiler, score, length),
            )
    return programs


def check_surroundings(
    train: Pretraining,
    score: LengthSweep | None,
    workdir: str,
    saved: Mapping[str, Callable[[], str]],
    parts: int = 1,
) -> Iterator[Check]:
    """Yield the outcomes of checking the files that a run reads and the directory it writes to.

    No files are left behind. `parts` is the number of parts into which the hosts of the run divide
    the text.
    """

    yield checked("text and vocabulary", lambda: first_batch(train, parts))
    if score is not None:
        yield checked("sweep", lambda: first_row(score))
    if (evaluation := train.evaluation) is not None:
        yield checked("evaluation", lambda: evaluation.check(train))
    if workdir:
        yield checked("run directory", lambda: f"{writable_part(workdir)} is writable")
    else:
        yield Check("run directory", SKIPPED, "none given: add --workdir=DIR to check it")
    for name, check in saved.items():
        yield checked(name, check)


def first_batch(train: Pretraining, parts: int) -> str:
    """Read the last host's first batch, and return a description of the data.

    The last host is the first to run out of a short text.
    """
    check_vocabulary(train.data, train.model.vocab_size)
    length = train.lengths.longest
    data, rows = train.data.for_a_look(train.rows_per_step(length) // parts)
    batches = data_layer.train_iterator(
        data,
        length=length,
        batch_size=rows,
        seed=train.seed,
        shard_index=parts - 1,
        shard_count=parts,
    )
    next(batches)
    return f"{batches.description}, read as part {parts} of {parts}"


def first_row(score: LengthSweep) -> str:
    """Check a sweep, read a row of each data set at the longest length, and describe the sweep."""
    lengths, split = score.in_order, score.split
    taken = score.readable_lengths("this run")
    for part in score.data.parts:
        part.label()
        data_layer.scoring_text(part, length=lengths[-1], num_sequences=1, split=split)
    return f"lengths up to {taken[-1]} on the {split} split"


def checked(name: str, what: Callable[[], str]) -> Check:
    """Run the check `what` and return its outcome.

    `what` returns a description if it succeeds, and otherwise raises an error.
    """
    try:
        return Check(name, OK, what())
    except FireLMError as error:
        return Check(name, FAILED, str(error).replace("\n", "; "))
    except Exception as error:
        if not is_of_storage(error):
            raise
        return Check(name, FAILED, f"reading or writing failed: {reason(error)}")


def check_limits(model: Decoder, length: int) -> str:
    """Check that the attention kernel can represent the biases of one draw of initial parameters.

    Raises:
      RunFailed: It cannot, so that the loss of the first step would be NaN.
    """
    with compiling_for("tpu"):
        for encoding in model.encodings:
            found = encoding.diagnostics(encoding.init(jax.random.key(0)))
            diagnostics = {name: float(value) for name, value in found.items()}
            if reason := explain_nan(model, diagnostics, length):
                raise RunFailed(reason)
    return "within the limits of the kernel"


def writable_part(workdir: str) -> epath.Path:
    """Return the run directory or its nearest existing parent, without creating directories.

    Raises:
      UserError: This directory is not writable.
    """
    if in_bucket(workdir):  # a bucket has no folders
        ensure_writable(workdir)
        return epath.Path(workdir)
    place = epath.Path(workdir).absolute()
    while not place.exists():
        place = place.parent
    try:
        ensure_writable(place)
    except UserError as error:
        if place == epath.Path(workdir):
            raise
        cause = str(error).removeprefix(f"cannot write to --workdir {place}: ")
        raise UserError(f"cannot write to --workdir {workdir} (tried {place}): {cause}") from error
    return place


def check_gathers(train: Pretraining, mesh: Mesh | AbstractMesh, step: Estimate) -> Check:
    """Check that the step gathers all parameters over fsdp at least once.

    If fsdp is so large that a chip's part is thinner than the compiler's tiles, the compiler pads
    each part with zeros and sums the padded parts instead, which multiplies the communication and
    the computation.
    """
    name, gathered = "gathers over fsdp", gathered_bytes(step)
    if gathered is None:
        return Check(name, SKIPPED, f"unknown: {step.untimed}")
    least, summed = gathered_once(train, mesh), step.collectives.get("all-reduce", (0, 0))[1]
    sizes = [f"{size / 2**20:.0f} MiB" for size in (least, gathered, summed)]
    if gathered >= 0.9 * least:
        return Check(name, OK, f"{sizes[1]}; gathering every parameter once would take {sizes[0]}")
    return Check(
        name,
        FAILED,
        f"{sizes[1]}, but gathering every parameter once would take {sizes[0]}: the compiler uses "
        f"all-reduces instead ({sizes[2]}); lower MeshShape.fsdp and raise MeshShape.data",
    )


def check_token(generation: Generation) -> Check:
    """Check that decoding a token does not gather most parameters, which would be too slow."""
    name, whole = "gathers of a new token", generation.parameters
    gathered = gathered_bytes(generation.token)
    if gathered is None:
        return Check(name, SKIPPED, f"unknown: {generation.token.untimed}")
    sizes = [f"{size / 2**20:.1f} MiB" for size in (gathered, whole)]
    found = f"{sizes[0]}; gathering a chip's parameters once would take {sizes[1]}"
    return Check(name, FAILED if gathered > whole / 2 else OK, found)


def gathered_bytes(costs: Costs) -> int | None:
    """Return the bytes that a program gathers, or None if its collectives could not be read."""
    if costs.untimed and not costs.collectives:
        return None
    kinds = ("all-gather", "collective-permute")
    return sum(costs.collectives.get(kind, (0, 0))[1] for kind in kinds)


def gathered_once(train: Pretraining, mesh: Mesh | AbstractMesh) -> int:
    """Return the bytes on a chip after one gather of every parameter that is sharded over fsdp.

    The parameters have the compute dtype, and each chip gathers only its part along the tensor
    axis.
    """
    sizes = {**mesh.shape, "fsdp": 1}
    whole = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=mesh.axis_types)
    params = jax.tree.leaves(sharding.with_shardings(train.abstract_state().params, whole))
    return np.dtype(train.model.dtype).itemsize * sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in params
        if "fsdp" in leaf.sharding.spec
    )
