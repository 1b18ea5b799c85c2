"""`fire-lm generate`: what a trained model writes after a prompt, or after each of a file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from fire_lm.checkpoints import choose_step, restore_params, split_run
from fire_lm.cli.startup import quiet_libraries
from fire_lm.console import Progress
from fire_lm.errors import UserError
from fire_lm.evaluation.scoring import parameter_shapes
from fire_lm.generation import Beam, Greedy, Method, Sample
from fire_lm.processes import by_first, initialize_distributed
from fire_lm.runs.continuations import Writer
from fire_lm.runs.evaluated import configuration
from fire_lm.runs.prompts import (
    Prompt,
    continued,
    finished,
    read_prompts,
    result_line,
    whole_lines,
)
from fire_lm.runs.run import open_run
from fire_lm.sharding import MeshShape, decoding_layout, make_mesh
from fire_lm.storage import Appended, append_to, place, read_bytes


def run(arguments: argparse.Namespace) -> None:
    quiet_libraries()
    method = method_of(arguments)
    initialize_distributed()
    writer, about = writer_of(arguments, method)
    if arguments.prompt is not None:
        continue_one(writer, arguments)
    else:
        continue_all(writer, arguments, about)


def method_of(arguments: argparse.Namespace) -> Method:
    """Greedy, unless settings of another method are given.

    Raises:
      UserError: they are of two methods, or have no meaning.
    """
    drawn = {
        name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "samples")
    }
    drawn = {name: value for name, value in drawn.items() if value is not None}
    if arguments.beams is None:
        if arguments.alpha is not None:
            raise UserError("--alpha is the length penalty of beam search: give --beams, too")
        return Sample(**drawn) if drawn else Greedy()
    if drawn:
        raise UserError(f"--beams searches and --{next(iter(drawn))} draws: give one of the two")
    return Beam(arguments.beams, **({} if arguments.alpha is None else {"alpha": arguments.alpha}))


def writer_of(arguments: argparse.Namespace, method: Method) -> tuple[Writer, dict[str, Any]]:
    """The run's model with the settings of the command, and what results say of them."""
    opened = open_run(arguments.run)
    folder, _ = split_run(arguments.run)
    config, variant = configuration(arguments, opened.workdir)
    model, data = config.call("build_decoder"), config.call("pretrain").data
    step = by_first(lambda: choose_step(opened.workdir, opened.step))
    mesh = make_mesh(MeshShape())
    params, _ = restore_params(folder, step, decoding_layout(parameter_shapes(model), mesh))
    writer = Writer(
        *(model, params, data, arguments.new_tokens, method, tuple(arguments.stop)),
        seed=arguments.seed,
        mesh=mesh,
    )
    about = {
        "run": opened.name,
        "step": step,
        "variant": variant,
        "decoding": method.label,
        "new_tokens": arguments.new_tokens,
        "stop": arguments.stop,
    }
    if isinstance(method, Sample):
        about |= {"samples": method.samples, "seed": arguments.seed}
    return writer, about


def continue_one(writer: Writer, arguments: argparse.Namespace) -> None:
    """The text appears as it is written; several continuations when all are there."""
    if arguments.output:
        raise UserError("--output is for the results of --prompts; one --prompt is printed")
    ids, terminal = writer.encode(arguments.prompt), _Terminal(writer.stop)
    alone = writer.method.continuations == 1 and not isinstance(writer.method, Beam)
    start = time.monotonic()
    show = terminal.show if alone and jax.process_index() == 0 else None
    found = writer.continue_prompts([ids], [0], arguments.context_length, show)[0]
    if jax.process_index():
        return
    for number, one in enumerate(found, 1):
        if alone:
            terminal.end(one.text)
        else:
            print(f"--- {number} of {len(found)}: score {one.score:.3f}, ended by {one.ended}")
            print(one.text)
    seconds, tokens = time.monotonic() - start, sum(len(one.tokens) for one in found)
    ended = f", ended by {found[0].ended}" if alone else ""
    print(f"{tokens} tokens{ended}, {seconds:.1f} s with compiling", file=sys.stderr)


class _Terminal:
    """Prints a text that grows, without what may still be changed by its next token."""

    def __init__(self, stop: Sequence[str]):
        self._shown, self._held = "", max((len(one) - 1 for one in stop), default=0)

    def show(self, text: str) -> None:
        text = text[: len(text) - self._held].rstrip("\N{REPLACEMENT CHARACTER}")
        if text.startswith(self._shown):
            print(text[len(self._shown) :], end="", flush=True)
            self._shown = text

    def end(self, text: str) -> None:
        print(text[len(self._shown) :] if text.startswith(self._shown) else f"\n{text}")


def continue_all(writer: Writer, arguments: argparse.Namespace, about: dict[str, Any]) -> None:
    """Writes a line of results for each prompt that is not in --output yet."""
    prompts = [Prompt(*fields) for fields in by_first(lambda: _fields(arguments.prompts))]
    encoded = [(prompt, _encoded(writer, prompt)) for prompt in prompts]
    longest = max(len(ids) for _, ids in encoded)
    context_length = arguments.context_length or longest + writer.new_tokens
    about = about | {"context_length": context_length}
    output = place(arguments.output) if arguments.output else None
    there = set(by_first(lambda: sorted(finished(output, about), key=str)) if output else [])
    left = [one for one in encoded if one[0].id not in there]
    if there:
        print(f"{len(encoded) - len(left)} of {len(encoded)} prompts are in {output} already")
    quiet = output is None or jax.process_index() != 0
    progress, start, tokens = Progress(len(left), quiet=quiet), time.monotonic(), 0
    done = 0
    with _lines_to(arguments.output) as write:
        for batch in continued(writer, left, arguments.batch_size, context_length):
            for prompt, found in batch:
                write(result_line(prompt, about, found))
                tokens += sum(len(one.tokens) for one in found)
            done += len(batch)
            rate = tokens / (time.monotonic() - start)
            progress.show(done, f"{rate:,.0f} tokens per second")
    progress.close()


def _fields(name: str) -> list[list[Any]]:
    """The fields of the prompts, as JSON."""
    if name == "-":
        found = read_prompts(sys.stdin, "standard input")
    else:
        content = read_bytes(place(name))
        if content is None:
            raise UserError(f"--prompts: there is no file {name}")
        found = read_prompts(content.decode(errors="replace").splitlines(), name)
    return [[prompt.id, prompt.text, prompt.number] for prompt in found]


def _encoded(writer: Writer, prompt: Prompt) -> np.ndarray:
    try:
        return writer.encode(prompt.text)
    except UserError as error:
        raise UserError(f"prompt {prompt.id!r}: {error}") from None


@contextmanager
def _lines_to(output: str | None) -> Iterator[Any]:
    """A function that writes a line of results, on process 0."""
    if jax.process_index():
        yield lambda line: None
    elif output is None:
        yield lambda line: print(line, end="", flush=True)
    else:
        file: Appended = append_to(output, whole_lines, in_parts=False)
        try:
            yield lambda line: file.append(line.encode())
        finally:
            file.close()
