"""Side-by-side benchmarks; those of models need JAX, Flax and Optax, but no gin or TensorFlow.

This module imports no numerical library: on a CPU, each library must see only one core when it
starts. This makes the comparison fair and less sensitive to other activity on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from fire_lm.console import columns, signs_of_life
from fire_lm.errors import UserError
from fire_lm.hardware.host import keep_freed_memory, pin_threads, usable_cores


def run(arguments: argparse.Namespace) -> None:
    """Run `fire-lm bench SUBJECT`, which prints a table and can also write the results as JSON."""
    subject = arguments.subject
    with signs_of_life(f"bench {subject}"):
        if subject == "data":  # on all cores
            from fire_lm.bench import data

            data.bench(arguments)
        elif subject == "attention" and arguments.tpu:
            compile_for_tpu(arguments)
        else:
            with one_core():
                bench_models(arguments)


def bench_models(arguments: argparse.Namespace) -> None:
    """Run a benchmark that needs neither TensorFlow nor the TPU's compiler."""
    if arguments.subject == "model":
        from fire_lm.bench import model

        model.bench(arguments, load_peer(arguments.peer))
    elif arguments.subject == "generate":
        from fire_lm.bench import generation

        generation.bench(arguments, load_peer(arguments.peer, "transformers_peer"))
    elif arguments.window:
        from fire_lm.bench import windows

        windows.bench(arguments)
    else:
        from fire_lm.bench import attention

        attention.bench(arguments, load_peer(arguments.peer))


def compile_for_tpu(arguments: argparse.Namespace) -> None:
    """Run `fire-lm bench attention --tpu`, which prints the compiler's estimates for kernels."""
    from fire_lm.bench.arguments import check_json, completed

    completed(arguments, (), "--tpu")
    check_json(arguments.json)
    os.environ["JAX_PLATFORMS"] = "cpu"
    if importlib.util.find_spec("libtpu") is None:
        raise UserError("--tpu needs libtpu, the TPU's compiler: run `pip install 'jax[tpu]'`")
    with tempfile.TemporaryDirectory(prefix="fire_lm_bundles_") as folder:
        from fire_lm.preflight import bundles

        bundles.dump_schedules_to(folder)
        from fire_lm.bench.tables import publish
        from fire_lm.hardware.slices import compiler_name
        from fire_lm.preflight import attention_kernels

        measures = attention_kernels.estimate(arguments.tpu, Path(folder), arguments.window)
        libtpu = compiler_name()
        title = (f"the compiler's estimates for {arguments.tpu}", libtpu)
        report = {
            "slice": arguments.tpu,
            "libtpu": libtpu.removeprefix("libtpu "),
            "measures": measures,
        }
        publish(arguments.json, report, "\n".join(columns([title, *measures.items()])))


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Start JAX and, if its backend is a CPU, restrict this process to one core.

    The restriction is lifted at the end of the `with` block.
    """
    cores = usable_cores()
    ask_for_one_thread()
    # Use the last of the usable cores (which `taskset` can select), because the first core usually
    # handles interrupts.
    pin_threads(set(sorted(cores)[-1:]))
    try:
        from fire_lm.bench import machine
        from fire_lm.hardware.absent_tpu import skip_absent_tpu
        from fire_lm.hardware.jax_settings import ignore_variables

        ignore_variables()
        skip_absent_tpu()
        keep_freed_memory()  # before `clock`, which starts JAX
        if machine.clock() == "wall":
            pin_threads(cores)
        yield
    finally:
        pin_threads(cores)


def ask_for_one_thread() -> None:
    """Limit libraries that start later to one thread, because some ignore the number of cores."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    # By default, JAX would reserve most of a GPU's memory and leave none for the peer library.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def load_peer(name: str | None, module: str = "torch_peer") -> ModuleType | None:
    """Import `module`, which builds our model in another library; return None if `name` is None."""
    if name is None:
        return None
    try:
        return importlib.import_module(f"fire_lm.bench.{module}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        library = {"torch": "PyTorch"}.get(error.name, error.name)
        raise UserError(
            f"--peer torch: {library} is not installed here: run `pip install {error.name}`, or "
            "omit --peer"
        ) from error
