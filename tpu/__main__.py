"""The command line `python -m tpu VERB ...`, which is run from the root of the repository."""

from __future__ import annotations

import argparse
import math
import sys
import traceback

from fire_lm.cli import check_once, warn_of_overridden_bindings
from fire_lm.cli.argument_checks import check_not_empty, flags_of
from fire_lm.cli.argument_types import Parser, names, number, ranges
from fire_lm.console import Guarded, standard_streams
from fire_lm.errors import (
    FireLMError,
    ReaderEnded,
    UserError,
    is_of_storage,
    nearest,
    printable,
    reason,
)
from fire_lm.storage.quiet import silence_logs
from tpu.commands import LIBRARIES_LOGIN
from tpu.placeholders import check_arguments


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m tpu", description="Runs fire_lm on Cloud TPUs.")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
    where = Parser(add_help=False)
    where.add_argument("--cluster", help="name of a file in tpu/clusters, or path of another file")
    where.add_argument(
        "--cluster.FIELD", metavar="VALUE", help="override a field of the file (repeatable)"
    )
    where.add_argument("--dry_run", action="store_true", help="print the calls without making them")
    where.add_argument("--debug", action="store_true", help="show a traceback with an error")
    name = Parser(add_help=False)
    name.add_argument("name", metavar="NAME", help="the name of the run and its TPUs")
    gin = Parser(add_help=False)
    gin.add_argument("--gin_file", action="append", default=[], help="as in fire-lm")
    gin.add_argument("--gin_search_paths", default="", help="as in fire-lm")
    gin.add_argument("--gin.NAME", metavar="VALUE", help="as in fire-lm (repeatable)")
    looks = Parser(add_help=False)
    looks.add_argument("--every", type=_seconds, help="seconds between checks of the job (60)")
    job = Parser(add_help=False, parents=[looks])
    job.add_argument("--keep", action="store_true", help="keep the TPUs at the end")
    job.add_argument("--detach", action="store_true", help="return once the job is running")
    before = Parser(add_help=False)
    before.add_argument(
        "--no_preflight", action="store_true", help="do not compile the job on this machine first"
    )

    verbs.add_parser("image", parents=[where], help="build the image of this commit")
    verbs.add_parser("create", parents=[where, name], help="request TPUs without starting a job")
    verbs.add_parser("setup", parents=[where, name], help="pull the image and test the bucket")
    compiled, like = [where, name, gin, before, job], "like pretrain, but for `fire-lm"
    to_completion = "train to completion: create, set up, launch, restart when preempted, delete"
    verbs.add_parser("pretrain", parents=compiled, help=to_completion)
    verbs.add_parser("finetune", parents=compiled, help=f"{like} finetune`")
    sweep = verbs.add_parser(
        "sweep", parents=[where, name, gin, job], help=f"{like} sweep RUN ...`"
    )
    evaluate = verbs.add_parser(
        "evaluate", parents=compiled, help=f"{like} evaluate RUN ...` on downstream tasks"
    )
    for verb in (sweep, evaluate):
        verb.add_argument(
            "runs", metavar="RUN[@STEPS]", nargs="+", help="names of runs, or gs:// paths"
        )
    sweep.add_argument(
        "--output",
        metavar="GS",
        help="folder for the combined table and figure (default for several runs: "
        "gs://BUCKET/sweeps/NAME)",
    )
    grid = verbs.add_parser(
        "grid",
        parents=[where, name, gin, before, looks],
        help="run a grid of encodings x seeds x bindings",
    )
    _add_grid(grid)
    verbs.add_parser(
        "render", parents=[where, name, gin], help="print the GKE manifest of `pretrain`"
    )
    status = verbs.add_parser(
        "status",
        parents=[where],
        help="list all TPUs in the project and zone, with their age and chip-hours",
    )
    status.add_argument("name", metavar="NAME", nargs="?", help="also show each host of this job")
    _add_logs(verbs.add_parser("logs", parents=[where, name], help="show the output of a job"))
    verbs.add_parser("stop", parents=[where, name], help="save and end the job; GKE frees its TPUs")
    verbs.add_parser("delete", parents=[where, name], help="end the job and release the TPUs")
    return parser


def _add_logs(logs: Parser) -> None:
    logs.add_argument(
        "--host", type=int, default=0, help="number of the host (default: %(default)s)"
    )
    logs.add_argument(
        "--lines", type=int, default=100, help="number of lines (default: %(default)s)"
    )
    logs.add_argument("--follow", action="store_true", help="keep printing new output")


def _add_grid(grid: Parser) -> None:
    """Add the arguments of `grid`, which select the arms and where they run."""
    grid.add_argument(
        "--positions",
        type=names,
        required=True,
        metavar="A,B",
        help="names of files in configs/positions",
    )
    grid.add_argument(
        "--seeds", type=_seeds, default="0", metavar="A,B", help="seeds (default: %(default)s)"
    )
    grid.add_argument(
        "--vary.NAME",
        metavar="VALUE",
        help="a value of the binding NAME (repeat for further values or bindings)",
    )
    grid.add_argument("--vary.gin_file", metavar="A,B", help="gin files of an arm; empty for none")
    grid.add_argument(
        "--sequences", type=number, help="exercises per length of a synthetic task (default: 128)"
    )
    grid.add_argument(
        "--measure",
        metavar="MODULE.CLASS",
        help="score each arm by this measure, as `fire-lm evaluate` does, and write a report",
    )
    grid.add_argument(
        "--lengths", type=ranges, metavar="A-B,C", help="lengths for --measure (default: its own)"
    )
    grid.add_argument(
        "--at_once",
        type=number,
        default=2,
        help="number of arms to run at a time (default: %(default)s)",
    )
    grid.add_argument("--local", action="store_true", help="run on this machine")
    grid.add_argument(
        "--output",
        metavar="DIR",
        help="folder for the table, the figure and, with --local, the runs (default: runs/NAME)",
    )


def _seeds(text: str) -> list[int]:
    if not all(part.isascii() and part.isdigit() for part in names(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of whole numbers")
    return [int(part) for part in names(text)]


def _seconds(text: str) -> float:
    try:
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")


# The verbs that pass flags on to a fire-lm command.
_PASSED_ON = ("pretrain", "finetune", "sweep", "evaluate", "grid", "render")
# Flags that contain a name: for each prefix, where they are collected, and how the help has them.
_PREFIXES = {
    "--cluster.": ("overrides", "cluster.FIELD"),
    "--gin.": ("bindings", "gin.NAME"),
    "--vary.": ("varied", "vary.NAME"),
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse arguments, including flags that contain a name, such as --gin.NAME.

    Flags with the same prefix, such as --gin., are collected in a list. Unknown flags are collected
    in `rest`, for the fire-lm command that runs on the hosts.
    """
    named: dict[str, list[str]] = {prefix: [] for prefix in _PREFIXES}
    others = []
    for argument in arguments:
        prefix = next((p for p in _PREFIXES if argument.startswith(p)), "")
        if prefix and "=" not in argument:
            raise UserError(f"{argument} has no value: write {argument}=VALUE")
        if prefix:
            named[prefix].append(argument.removeprefix(prefix))
        else:
            others.append(argument)
    parser = build_parser()
    parsed, rest = parser.parse_known_args(others)
    flags = flags_of(parser, parsed)
    for prefix, values in named.items():
        name, in_help = _PREFIXES[prefix]
        if values and in_help not in vars(parsed):
            raise UserError(f"`python -m tpu {parsed.verb}` takes no {prefix} flags: remove them")
        setattr(parsed, name, values)
    if rest and parsed.verb not in _PASSED_ON:
        near = nearest(rest[0].partition("=")[0], flags.values())
        hint = f": did you mean {near}?" if near else ""
        raise UserError(f"unknown argument {rest[0]}{hint}")
    check_not_empty(parsed, flags)
    check_arguments(arguments)
    check_once([argument for argument in others if argument.startswith("--")])
    warn_of_overridden_bindings(parsed.overrides, "--cluster.", "tpu")
    parsed.rest = rest
    return parsed


def main(arguments: list[str] | None = None) -> int:
    """Run a verb and return the exit code, which has the same meaning as that of fire-lm."""
    with standard_streams() as output:
        return _main(sys.argv[1:] if arguments is None else arguments, output)


def _main(given: list[str], output: Guarded | None) -> int:
    try:
        parsed = parse(given)
        if output is not None:  # the other verbs print the progress of their work
            output.required = parsed.dry_run or parsed.verb in ("status", "render", "logs")
        silence_logs()
        from tpu import verbs

        getattr(verbs, parsed.verb)(parsed)
        sys.stdout.flush()
    except FireLMError as error:
        if "--debug" in given:
            traceback.print_exc()
        if not isinstance(error, ReaderEnded):
            print(f"\ntpu: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if "--debug" in given or not is_of_storage(error):
            raise
        print(f"\ntpu: reading or writing failed: {printable(reason(error))}", file=sys.stderr)
        if type(error).__module__.startswith("tensorflow."):  # of a bucket
            print(LIBRARIES_LOGIN, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntpu: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
