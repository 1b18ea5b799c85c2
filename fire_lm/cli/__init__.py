"""The command-line interface, which maps each verb to a function.

Heavy modules are imported only after the verb has been parsed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
import traceback

from fire_lm.cli.argument_checks import check_characters, check_not_empty, flags_of, texts_of
from fire_lm.cli.out_of_memory import is_out_of_memory, out_of_memory
from fire_lm.cli.parser import build_parser
from fire_lm.console import Guarded, standard_streams
from fire_lm.errors import (
    FireLMError,
    OutputLost,
    Preempted,
    ReaderEnded,
    RunFailed,
    UserError,
    is_of_storage,
    nearest,
    printable,
    reason,
)


def main(argv: list[str] | None = None) -> int:
    """Run a verb and return its exit code; docs/pretraining.md lists the exit codes."""
    with standard_streams() as output:
        return _main(sys.argv[1:] if argv is None else argv, output)


def _main(arguments: list[str], output: Guarded | None) -> int:
    try:
        parsed = parse(arguments)
        if output is not None:
            output.required = prints_result(parsed)
        perform(parsed)
        sys.stdout.flush()
    except FireLMError as error:
        return report_error(error, arguments)
    except Exception as error:
        if "--debug" not in arguments and is_out_of_memory(error):
            return report_error(RunFailed(out_of_memory(error, arguments)), arguments)
        if problem := backend_problem(error):
            return report_error(problem, arguments)
        if "--debug" in arguments or not is_of_storage(error):
            if in_job():
                traceback.print_exc()
                leave_job(RunFailed.exit_code)
            raise
        return report_error(RunFailed(f"reading or writing failed: {reason(error)}"), arguments)
    except KeyboardInterrupt:
        print("\nfire-lm: interrupted; rerun the same command to resume", file=sys.stderr)
        return leave_job(130)
    return 0


def report_error(error: FireLMError, arguments: list[str]) -> int:
    """Print an error and return its exit code; in a job of several processes, see `leave_job`."""
    if "--debug" in arguments:
        traceback.print_exc()
    if not isinstance(error, ReaderEnded):
        print(f"\nfire-lm: {printable(str(error))}", file=sys.stderr)
    return error.exit_code if isinstance(error, Preempted) else leave_job(error.exit_code)


def backend_problem(error: Exception) -> FireLMError | None:
    """Return the cause of an error if JAX cannot use the backend that the environment selects."""
    if "jax" not in sys.modules or not isinstance(error, RuntimeError | AssertionError):
        return None
    from fire_lm.hardware import backends

    return backends.backend_problem()


_OTHERS_SECONDS = 3.0  # the time in which the other processes of a job exit


def leave_job(code: int) -> int:
    """Return the exit code; in a job of several processes, exit immediately with this code instead.

    An orderly exit would wait 5 minutes for the other processes, which are themselves waiting for
    this process, and would then abort. Process 0 waits a moment: the coordination service ends with
    it, and JAX aborts every process that loses the service before it has exited with its own code.
    """
    if in_job():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OutputLost):
                stream.flush()
        try:
            if sys.modules["jax"].process_index() == 0:
                time.sleep(_OTHERS_SECONDS)
        finally:  # also at a second Ctrl-C
            os._exit(code)
    return code


def in_job() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def prints_result(parsed: argparse.Namespace) -> bool:
    """Return whether stdout carries the result of the command, and not only its progress."""
    if getattr(parsed, "dry_run", False):
        return True
    if parsed.verb == "corpus":
        return bool(parsed.part == "check")
    if parsed.verb == "generate":
        return not parsed.output
    return parsed.verb in ("preflight", "bench")  # a report is a folder


def perform(parsed: argparse.Namespace) -> None:
    """Import the module of the verb and run it.

    Modules that only other verbs need are not imported, so that most benchmarks need only JAX. For
    most verbs, the buckets in the arguments must exist.
    """
    if not getattr(parsed, "dry_run", False) and parsed.verb not in ("bench", "grid", "preflight"):
        require_buckets(parsed)
    if parsed.verb == "bench":
        module = importlib.import_module("fire_lm.bench")
    else:
        modules = {"import": "import_", "finetune": "pretrain", "test-encoding": "test_encoding"}
        name = modules.get(parsed.verb, parsed.verb)
        module = importlib.import_module(f"fire_lm.cli.{name}")
    if parsed.verb not in ("bench", "corpus", "grid"):
        from fire_lm.cli.startup import prepare_process

        prepare_process()
    module.run(parsed)


def require_buckets(parsed: argparse.Namespace) -> None:
    """Raise UserError if an argument names a bucket that does not exist."""
    paths = [(name, text) for name, text in texts_of(parsed) if text.startswith("gs://")]
    if paths:
        from fire_lm.storage import require_bucket

        flags = flags_of(build_parser(), parsed)
        for name, path in paths:
            require_bucket(path, flags.get(name, name))


def parse(arguments: list[str], tell: bool = True) -> argparse.Namespace:
    """Parse the command line, and collect flags of the form `--gin.NAME=VALUE` in `bindings`.

    `--pairs=FILE` becomes a gin file and a binding. `grid` passes on its arguments in `rest`. With
    `tell`, bindings that are overridden are printed.

    Raises:
      UserError: An argument is unknown, empty, misplaced or repeated, or contains a control
        character.
    """
    if arguments[:1] == ["grid"]:
        return argparse.Namespace(verb="grid", rest=arguments[1:])
    bindings = [a.removeprefix("--gin.") for a in arguments if a.startswith("--gin.")]
    for binding in bindings:
        if "=" not in binding:  # the value is another argument, which might be taken for a run
            raise UserError(f"--gin.{binding}: a binding must be of the form --gin.NAME=VALUE")
    parser = build_parser()
    rest = [a for a in arguments if not a.startswith("--gin.")]
    parsed, unknown = parser.parse_known_args(rest)
    flags = flags_of(parser, parsed)
    check_not_empty(parsed, flags)
    check_characters(parsed, bindings, flags)
    if bindings and not hasattr(parsed, "gin_file"):
        raise UserError(f"`fire-lm {parsed.verb}` takes no --gin. bindings: remove them")
    if unknown:
        flag = unknown[0].split("=")[0]
        near = nearest(flag, [name for name in flags.values() if name.startswith("--")])
        hint = f": did you mean {near}?" if near else f"; see `fire-lm {parsed.verb} --help`"
        raise UserError(f"unknown argument {flag}{hint}")
    if getattr(parsed, "part", None):
        _check_flags_follow_part(parsed.part, rest)
    check_once([a for a in rest if a.startswith("--")])
    if tell:
        warn_of_overridden_bindings(bindings)
    parsed.bindings = bindings
    if getattr(parsed, "pairs", None):  # stands for a file and a binding before all others
        parsed.gin_file = ["configs/finetune/pairs.gin", *parsed.gin_file]
        parsed.bindings = [f"PAIRS={parsed.pairs!r}", *parsed.bindings]
    return parsed


def warn_of_overridden_bindings(
    bindings: list[str], flag: str = "--gin.", command: str = "fire-lm"
) -> None:
    """Print the bindings that override an earlier binding of the same name.

    This is not an error, because a script may append its own bindings to those of the user.
    """
    values: dict[str, list[str]] = {}
    for binding in bindings:
        name, _, value = binding.partition("=")
        values.setdefault(name.strip(), []).append(value)
    last = [f"{flag}{name}={given[-1]}" for name, given in values.items() if len({*given}) > 1]
    if last:
        shown = printable(" ".join(" ".join(last).split()))
        print(f"{command}: only the last of repeated bindings applies: {shown}", file=sys.stderr)


# Flags that may be given several times.
_REPEATED = ("--gin_file", "--import", "--also", "--runner_options", "--stop")


def check_once(given: list[str]) -> None:
    """Raise UserError if a flag outside `_REPEATED` is repeated, as only one value would apply."""
    flags = [argument.partition("=")[0] for argument in given]
    for flag in flags:
        if flags.count(flag) > 1 and flag not in _REPEATED:
            raise UserError(f"{flag} is given more than once: remove all but one")


def _check_flags_follow_part(part: str, arguments: list[str]) -> None:
    """Raise UserError if a flag precedes the part of `corpus`, where it would be ignored."""
    for argument in arguments[: arguments.index(part)]:
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag != "--debug":
            raise UserError(
                f"{flag} before `{part}` has no effect: put the flags of `corpus {part}` after it\n"
                f"`fire-lm corpus {part} --help` lists its arguments"
            )
