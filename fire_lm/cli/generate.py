"""`fire-lm generate`, which continues a prompt, or each prompt in a file, with a trained model."""

from __future__ import annotations

import argparse
import dataclasses
import io
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from etils import epath

from fire_lm.checkpoints import choose_step, restore_params
from fire_lm.console import Progress
from fire_lm.errors import UserError
from fire_lm.generation import Beam, Greedy, Method, Sample
from fire_lm.generation.continuations import Writer
from fire_lm.generation.generate import check_context
from fire_lm.generation.prompts import Prompt, continued, finished, read_prompts, result_line
from fire_lm.generation.result_lines import appended_lines
from fire_lm.hardware.program_cache import keep_programs
from fire_lm.models import check_decoder, parameter_shapes
from fire_lm.processes import by_first, initialize_distributed
from fire_lm.runs.run import open_run
from fire_lm.runs.saved import tokenized_of_run
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.sharding import MeshShape, decoding_layout, make_mesh
from fire_lm.storage import place, read_bytes


def run(arguments: argparse.Namespace) -> None:
    keep_programs()
    method = method_of(arguments)
    initialize_distributed()
    if arguments.prompt is not None and arguments.output:
        raise UserError("--output applies only to --prompts: omit it with --prompt")
    prompts = prompts_of(arguments)
    opened = opened_by(arguments, method)
    encoded = [(prompt, _encoded(opened.writer, prompt)) for prompt in prompts]
    longest = max(len(ids) for _, ids in encoded) + arguments.new_tokens
    context_length = arguments.context_length or longest
    if context_length < longest:
        raise UserError(
            f"--context_length={context_length} is too small: set it to {longest} or more"
        )
    check_context(opened.writer.model, longest, context_length)
    if arguments.prompt is not None:
        continue_one(opened.restored(), encoded[0][1], context_length)
    else:
        continue_all(opened, arguments, encoded, context_length)


def prompts_of(arguments: argparse.Namespace) -> list[Prompt]:
    """Return the prompts in the --prompts file, or the single --prompt, on every process."""
    if arguments.prompt is not None:
        return [Prompt("--prompt", arguments.prompt, 0)]  # Number 0 marks a prompt outside a file.
    return [Prompt(*fields) for fields in by_first(lambda: _fields(arguments.prompts))]


def method_of(arguments: argparse.Namespace) -> Method:
    """Return the decoding method, which is greedy unless settings of another method are given."""
    drawn = {
        name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "samples")
    }
    drawn = {name: value for name, value in drawn.items() if value is not None}
    if drawn.get("temperature") == 0:
        raise UserError(
            "--temperature is 0: it must be finite and at least 1e-6\nfor greedy decoding, omit "
            "--temperature, --top_k, --top_p and --samples"
        )
    if arguments.beams is None:
        if arguments.alpha is not None:
            raise UserError("--alpha is the length penalty of beam search: also give --beams")
        return Sample(**drawn) if drawn else Greedy()
    if drawn:
        raise UserError(f"--beams and --{next(iter(drawn))} exclude each other: omit one of them")
    return Beam(arguments.beams, **({} if arguments.alpha is None else {"alpha": arguments.alpha}))


@dataclasses.dataclass(frozen=True)
class Opened:
    """An opened run and the settings with which the command continues prompts.

    Attributes:
      writer: The writer without the model's parameters, so that invalid settings and prompts are
        rejected before the parameters are read.
      workdir: The run directory.
      step: The step of the checkpoint.
      about: The settings that are recorded with the results.
    """

    writer: Writer
    workdir: epath.Path
    step: int
    about: dict[str, Any]

    def restored(self) -> Writer:
        """Return the writer with the parameters from the checkpoint."""
        assert self.writer.mesh is not None
        like = decoding_layout(parameter_shapes(self.writer.model), self.writer.mesh)
        params, _ = restore_params(self.workdir, self.step, like)
        return dataclasses.replace(self.writer, params=params)


def opened_by(arguments: argparse.Namespace, method: Method) -> Opened:
    """Open the run that the arguments name, without reading its parameters."""
    trained = open_run(arguments.run)
    experiment, variant = experiment_at_evaluation(arguments, trained.workdir)
    model = experiment.model
    check_decoder(model)
    data = tokenized_of_run(experiment, trained.workdir)
    step = by_first(lambda: choose_step(trained.workdir, trained.step))
    writer = Writer(
        model,
        {},
        data,
        arguments.new_tokens,
        method,
        tuple(arguments.stop),
        seed=arguments.seed,
        mesh=make_mesh(MeshShape()),
    )
    about = {
        "run": trained.name,
        "step": step,
        "variant": variant,
        "decoding": method.label,
        "new_tokens": arguments.new_tokens,
        "stop": arguments.stop,
    }
    if isinstance(method, Sample):
        about |= {"samples": method.samples, "seed": arguments.seed}
    return Opened(writer, trained.workdir, step, about)


def continue_one(writer: Writer, ids: np.ndarray, context_length: int) -> None:
    """Continue one prompt and print the result.

    A single continuation is printed as it is generated, unless it comes from beam search. Several
    continuations are printed once all are complete.
    """
    terminal, first = _Terminal(writer.stop), jax.process_index() == 0
    alone = writer.method.continuations == 1 and not isinstance(writer.method, Beam)
    start = time.monotonic()

    def show(text: str) -> None:
        if first:
            terminal.show(text)

    # A callback selects other programs, so all processes pass one or none does.
    (results,) = writer.continue_prompts([ids], [0], context_length, show if alone else None)
    if not first:
        return
    for number, result in enumerate(results, 1):
        if alone:
            terminal.end(result.text)
        else:
            score = f"score {result.score:.3f}"
            print(f"--- {number} of {len(results)}: {score}, ended by {result.ended}")
            print(result.text)
    seconds, tokens = time.monotonic() - start, sum(len(result.tokens) for result in results)
    ended = f", ended by {results[0].ended}" if alone else ""
    print(f"{tokens} tokens{ended}, {seconds:.1f} s including compilation", file=sys.stderr)


class _Terminal:
    """A printer of growing text that holds back the end, which the next token may still change."""

    def __init__(self, stop: Sequence[str]):
        self._shown, self._held = "", max((len(text) - 1 for text in stop), default=0)

    def show(self, text: str) -> None:
        text = text[: max(0, len(text) - self._held)].rstrip("\N{REPLACEMENT CHARACTER}")
        if text.startswith(self._shown):
            print(text[len(self._shown) :], end="", flush=True)
            self._shown = text

    def end(self, text: str) -> None:
        print(text[len(self._shown) :] if text.startswith(self._shown) else f"\n{text}")


def continue_all(
    opened: Opened,
    arguments: argparse.Namespace,
    encoded: Sequence[tuple[Prompt, np.ndarray]],
    context_length: int,
) -> None:
    """Write one line of results for each prompt that has no results in --output yet."""
    about = opened.about | {"context_length": context_length}
    output = place(arguments.output) if arguments.output else None
    prompts = [prompt for prompt, _ in encoded]
    done_ids = set(by_first(lambda: finished(output, about, prompts)) if output else [])
    left = [(prompt, ids) for prompt, ids in encoded if prompt.id not in done_ids]
    if done_ids:
        print(
            f"{len(encoded) - len(left)} of {len(encoded)} prompts already have results in {output}"
        )
    if not left:
        return
    writer = opened.restored()
    quiet = output is None or jax.process_index() != 0
    progress, start, tokens = Progress(len(left), quiet=quiet), time.monotonic(), 0
    done = 0
    with _lines_to(arguments.output) as write:
        for batch in continued(writer, left, arguments.batch_size, context_length):
            for prompt, results in batch:
                write(result_line(prompt, about, results).encode())
                tokens += sum(len(result.tokens) for result in results)
            done += len(batch)
            rate = tokens / (time.monotonic() - start)
            progress.show(done, f"{rate:,.0f} tokens per second")
    progress.close()


def _fields(name: str) -> list[list[Any]]:
    """Return the id, text and number of each prompt in a file or, for "-", in standard input."""
    if name == "-":
        if sys.stdin is None:
            raise UserError("--prompts=-: standard input is closed")
        prompts = read_prompts(sys.stdin.buffer.read(), "standard input")
    else:
        content = read_bytes(place(name))
        if content is None:
            raise UserError(f"--prompts: there is no file {name}")
        prompts = read_prompts(content, name)
    return [[prompt.id, prompt.text, prompt.number] for prompt in prompts]


def _encoded(writer: Writer, prompt: Prompt) -> np.ndarray:
    try:
        return writer.encode(prompt.text)
    except UserError as error:
        raise UserError(f"prompt {prompt.id!r}: {error}" if prompt.number else error) from None


@contextmanager
def _lines_to(output: str | None) -> Iterator[Any]:
    """Yield a function that takes a line of results as bytes and writes it on process 0 only."""
    if output is None:
        first = jax.process_index() == 0
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as JSON must be, whatever the locale
        yield lambda line: print(line.decode(), end="", flush=True) if first else None
        return
    with appended_lines(place(output)) as append:
        yield append
