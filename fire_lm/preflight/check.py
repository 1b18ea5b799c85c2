"""Tries out a pod run before a TPU is booked: what it reads and writes, and its programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax
import numpy as np
from etils import epath
from jax.sharding import AbstractMesh, Mesh

from fire_lm import data as data_layer
from fire_lm import sharding
from fire_lm.console import phase
from fire_lm.errors import FireLMError, UserError, is_of_storage, reason
from fire_lm.evaluation import LengthSweep
from fire_lm.preflight import nearest_fit
from fire_lm.preflight.estimate import Estimate, Generation
from fire_lm.preflight.programs import Compiler, DoesNotFit, Prompts
from fire_lm.preflight.report import FAILED, OK, SKIPPED, Check, Report
from fire_lm.storage import in_bucket
from fire_lm.training import Pretraining, check_vocabulary, ensure_writable

STEP, GENERATION = "training step", "generation"
_Found = TypeVar("_Found")


def preflight(
    compiler: Compiler,
    train: Pretraining,
    score: LengthSweep,
    lengths: Sequence[int],
    workdir: str,
    saved: Mapping[str, Callable[[], str]],
    prompts: Prompts | None = None,
) -> Report:
    """Compile the training step, the forward pass of a sweep, and the generation of any `prompts`.

    The checks that take seconds come first; their failures are in the report, as are those of
    programs that do not compile.

    Args:
      lengths: The lengths of the sweep.
      workdir: The run directory, or "".
      saved: By name, a function that returns in a word whether saved files fit, or raises.

    Raises:
      UserError: A setting cannot work on this slice.
    """
    mesh = compiler.mesh(train.mesh)
    compiler.mesh(score.mesh)
    sharding.check_batch(train.batch_size, train.microbatches, mesh)
    sharding.tree_shardings(train.abstract_state(), mesh)
    parts, libtpu = parts_of_batch(mesh), compiler_name()
    checks = list(check_surroundings(train, score, workdir, saved, parts))
    if any(check.name == "sweep" and check.outcome == FAILED for check in checks):
        lengths = ()
    programs, failures = compile_all(compiler, train, score, lengths)
    generation = None
    if prompts is not None:
        generation = compile_generation(compiler, score, prompts, programs, failures)
    if generation is not None:
        checks.append(check_token(generation))
    if STEP in programs and mesh.shape["fsdp"] > 1:
        checks.append(check_gathers(train, mesh, programs[STEP]))
    return Report(
        where=compiler.where,
        mesh=dict(mesh.shape),
        programs=programs,
        flops=train.flops_per_token * train.tokens_per_step,
        tokens=train.tokens_per_step,
        failures=failures,
        checks=checks,
        compiler=libtpu,
        generation=generation,
    )


def compiler_name() -> str:
    """Return the compiler's name, with its version if it was installed under a known name."""
    for name in ("libtpu", "libtpu-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return "libtpu, unknown version"


def compile_all(
    compiler: Compiler, train: Pretraining, score: LengthSweep, lengths: Sequence[int]
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Return programs by name, and for each that does not fit, the reason and what would fit."""
    programs: dict[str, Estimate] = {}
    failures: dict[str, str] = {}

    def add(name: str, compile: Callable[[], Estimate], what_fits: Callable[[], str]) -> None:
        if (found := _compiled(compiler, name, compile, what_fits, failures)) is not None:
            programs[name] = found

    add(
        STEP,
        functools.partial(compiler.training, train),
        functools.partial(nearest_fit.training, compiler, train),
    )
    for length in lengths:
        add(
            f"sweep at {length}",
            functools.partial(compiler.scoring, score, length),
            functools.partial(nearest_fit.scoring, compiler, score, length),
        )
    return programs, failures


def compile_generation(
    compiler: Compiler,
    score: LengthSweep,
    prompts: Prompts,
    programs: dict[str, Estimate],
    failures: dict[str, str],
) -> Generation | None:
    """Compile the generation of `prompts`, and add it to programs or failures."""
    found = _compiled(
        *(compiler, GENERATION),
        functools.partial(compiler.generation, score, prompts),
        functools.partial(nearest_fit.generation, compiler, score, prompts),
        failures,
    )
    if found is not None:
        programs[GENERATION] = found.program
    return found


def _compiled(
    compiler: Compiler,
    name: str,
    compile: Callable[[], _Found],
    what_fits: Callable[[], str],
    failures: dict[str, str],
) -> _Found | None:
    try:
        with phase(f"compiling the {name} for {compiler.where}", quiet=False):
            return compile()
    except DoesNotFit as error:
        print("too large")
        failures[name] = f"{error}\n{_check('', what_fits).told}"
    except FireLMError as error:
        failures[name] = str(error)
    return None


def check_surroundings(
    train: Pretraining,
    score: LengthSweep,
    workdir: str,
    saved: Mapping[str, Callable[[], str]],
    parts: int = 1,
) -> Iterator[Check]:
    """Check what a run needs besides its programs, and leave nothing behind.

    Its hosts read the text in `parts`.
    """

    yield _check("text and vocabulary", lambda: first_batch(train, parts))
    yield _check("sweep", lambda: first_row(score))
    if workdir:
        yield _check("run directory", lambda: f"{writable_part(workdir)} can be written")
    else:
        yield Check("run directory", SKIPPED, "none given: add --workdir=DIR to check it")
    for name, check in saved.items():
        yield _check(name, check)


def parts_of_batch(mesh: Mesh) -> int:
    """Return the number of parts into which the hosts of a slice divide every batch.

    Raises:
      UserError: The parts would differ in size.
    """
    _, parts = sharding.process_shard(mesh, mesh.devices.flat[0].process_index)
    return parts


def first_batch(train: Pretraining, parts: int) -> str:
    """Read the first batch as the last host does, the first to run out of a short text."""
    data, rows = train.data, train.batch_size // parts
    check_vocabulary(data, train.model.vocab_size)
    if isinstance(data, data_layer.TextData | data_layer.SeqioTask):
        # The stream is endless: a few rows show as much as many.
        rows = max(1, min(data.shuffle_buffer, rows))
        data = dataclasses.replace(data, shuffle_buffer=min(data.shuffle_buffer, rows))
    batches = data_layer.train_iterator(
        data,
        length=train.train_length,
        batch_size=rows,
        seed=train.seed,
        shard_index=parts - 1,
        shard_count=parts,
    )
    next(batches)
    return f"{batches.description}, read as part {parts} of {parts}"


def first_row(score: LengthSweep) -> str:
    """Run the checks of a sweep, and read one row of the longest length."""
    lengths, split = score.in_order, score.split
    taken = score.lengths_taken("this run")
    for part in score.data.parts:
        data_layer.dataset_label(part)
        data_layer.scoring_text(part, length=lengths[-1], num_sequences=1, split=split)
    return f"to length {taken[-1]} on the {split} split"


def _check(name: str, what: Callable[[], str]) -> Check:
    try:
        return Check(name, OK, what())
    except FireLMError as error:
        return Check(name, FAILED, str(error).replace("\n", "; "))
    except Exception as error:
        if not is_of_storage(error):
            raise
        return Check(name, FAILED, f"reading or writing failed: {reason(error)}")


def writable_part(workdir: str) -> epath.Path:
    """Return the run directory or its nearest existing parent, without creating anything.

    Raises:
      UserError: It is not writable.
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
        told = str(error).removeprefix(f"cannot write to --workdir {place}: ")
        raise UserError(f"cannot write to --workdir {workdir}, tried in {place}: {told}") from error
    return place


def check_gathers(train: Pretraining, mesh: Mesh | AbstractMesh, step: Estimate) -> Check:
    """Check that parameters are gathered over fsdp where they are used, at least once each.

    With fsdp so large that a chip's part is thinner than the compiler's tiles, the compiler instead
    sums arrays of zeros around each part, which moves and computes a multiple of the data.
    """
    least = gathered_once(train, mesh)
    found = sum(step.collectives.get(k, (0, 0))[1] for k in ("all-gather", "collective-permute"))
    summed = step.collectives.get("all-reduce", (0, 0))[1]
    sizes = [f"{size / 2**20:.0f} MiB" for size in (least, found, summed)]
    name = "gathers over fsdp"
    if found >= 0.9 * least:
        return Check(name, OK, f"{sizes[1]}; gathering every parameter once would be {sizes[0]}")
    return Check(
        name,
        FAILED,
        f"{sizes[1]} are gathered, every parameter once would be {sizes[0]}: the compiler uses "
        f"all-reduces instead ({sizes[2]}); choose a smaller MeshShape.fsdp, more data",
    )


def check_token(generation: Generation) -> Check:
    """Check that a new token gathers no parameters, which would take longer than the rest of it."""
    token, whole = generation.token, generation.parameters
    found = sum(token.collectives.get(k, (0, 0))[1] for k in ("all-gather", "collective-permute"))
    sizes = [f"{size / 2**20:.1f} MiB" for size in (found, whole)]
    return Check(
        "gathers of a new token",
        FAILED if found > whole / 2 else OK,
        f"{sizes[0]}; gathering a chip's parameters once would be {sizes[1]}",
    )


def gathered_once(train: Pretraining, mesh: Mesh | AbstractMesh) -> int:
    """Return the bytes (compute dtype) of the parameters that fsdp splits, of one tensor part."""
    sizes = {**mesh.shape, "fsdp": 1}
    whole = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=mesh.axis_types)
    params = jax.tree.leaves(sharding.with_shardings(train.abstract_state().params, whole))
    return np.dtype(train.model.dtype).itemsize * sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in params
        if "fsdp" in leaf.sharding.spec
    )
