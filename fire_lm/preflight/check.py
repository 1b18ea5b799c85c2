"""A pod run tried out before a TPU is booked: what it reads and writes, and its programs."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fire_lm import data as data_layer
from fire_lm import sharding
from fire_lm.errors import FireLMError, UserError
from fire_lm.metrics import phase
from fire_lm.preflight.programs import Compiler, DoesNotFit, flops
from fire_lm.preflight.report import FAILED, OK, SKIPPED, Check, Report
from fire_lm.training import check_vocabulary, ensure_writable


def preflight(
    compiler: Compiler,
    train: Mapping[str, Any],
    score: Mapping[str, Any],
    lengths: Sequence[int],
    workdir: str,
    check_workdir: Callable[[], str],
) -> Report:
    """Compiles the training step, and the forward pass of a sweep at `lengths`.

    Args:
      train, score: what `pretrain` and `length_sweep` would be called with.
      workdir: the run directory, or "".
      check_workdir: whether the run there can go on, in a word; raises if it cannot.

    Raises:
      UserError: a setting that cannot work on this slice.
    """
    mesh = compiler.mesh(train["mesh"])
    sharding.check_batch(train["batch_size"], train["microbatches"], mesh)
    checks = list(check_surroundings(train, workdir, check_workdir))
    programs, misfits = {}, {}
    wanted = {"training step": functools.partial(compiler.training, train)}
    for length in lengths:
        wanted[f"sweep at {length}"] = functools.partial(compiler.scoring, score, length)
    for name, compile in wanted.items():
        try:
            with phase(f"compiling the {name} for {compiler.where}", quiet=False):
                programs[name] = compile()
        except DoesNotFit as error:
            misfits[name] = str(error)
            if name == "training step":
                misfits[name] += f"\n{what_fits(compiler, train, mesh)}"
    return Report(
        where=compiler.where,
        mesh=dict(mesh.shape),
        programs=programs,
        flops=flops(train),
        tokens=train["batch_size"] * train["train_length"],
        misfits=misfits,
        checks=checks,
        compiler=f"libtpu {importlib.metadata.version('libtpu')}",
    )


def check_surroundings(
    train: Mapping[str, Any], workdir: str, check_workdir: Callable[[], str]
) -> Iterator[Check]:
    data, model = train["data"], train["model"]

    def read() -> str:
        check_vocabulary(data, model.vocab_size)
        batches = data_layer.train_iterator(
            data, length=train["train_length"], batch_size=1, seed=train["seed"]
        )
        return batches.description

    yield _check("text and vocabulary", read)
    if not workdir:
        yield Check("run directory", SKIPPED, "none given: add --workdir=DIR to try it")
        return

    def write() -> str:
        ensure_writable(workdir)
        return f"{workdir} can be written"

    yield _check("run directory", write)
    yield _check("checkpoint", check_workdir)


def _check(name: str, what: Callable[[], str]) -> Check:
    try:
        return Check(name, OK, what())
    except FireLMError as error:
        return Check(name, FAILED, str(error).replace("\n", "; "))


def what_fits(compiler: Compiler, train: Mapping[str, Any], mesh: Any) -> str:
    """The fewest microbatches, by doubling, with which the step fits."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    parts = train["microbatches"] * 2
    while train["batch_size"] % (ways * parts) == 0:
        try:
            with phase(f"trying {parts} microbatches", quiet=False):
                found = compiler.training({**train, "microbatches": parts})
            return (
                f"it fits with --gin.pretrain.microbatches={parts}: {found.memory / 2**30:.2f} GiB"
            )
        except DoesNotFit:
            parts *= 2
        except UserError as error:
            return str(error)
    if train["model"].remat != "full":
        return "no number of microbatches makes it fit: try --gin.build_decoder.remat='full'"
    return "no number of microbatches makes it fit: split the state over more fsdp or more chips"
