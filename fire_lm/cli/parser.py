"""The arguments of all verbs, and their help texts."""

from __future__ import annotations

import argparse
from typing import Any

from fire_lm import __version__
from fire_lm.cli.argument_types import Parser, number, ranges, seed, three_numbers
from fire_lm.cli.bench_arguments import add_benches
from fire_lm.cli.corpus_arguments import add_corpus

_CONFIG_HELP = (
    "configuration file, such as those in configs/; later files override earlier ones (repeatable)"
)


_PRETRAIN: dict[str, Any] = {
    "description": "Trains the model that the gin files describe, and writes the run to\n"
    "--workdir. Rerunning the same command resumes the run from its newest checkpoint.",
    "epilog": "example:\n"
    "  fire-lm pretrain --gin_file=configs/runs/quickstart.gin \\\n"
    "    --gin_file=configs/positions/fire.gin --gin.TRAIN_STEPS=200 --workdir=runs/fire\n\n"
    "exit codes: 0 done; 1 failed while running; 2 bad usage or configuration; 3 stopped by\n"
    "SIGTERM, SIGHUP, SIGUSR1 or one Ctrl-C, after saving; 130 ended by Ctrl-C, without saving",
}
_FINETUNE: dict[str, Any] = {
    "description": "Trains the model of the run INIT_FROM on a task, with the vocabulary of that\n"
    "run, and writes the new run to --workdir. Rerunning the same command resumes the new run\n"
    "from its newest checkpoint.",
    "epilog": "examples:\n"
    "  fire-lm finetune --gin_file=configs/finetune/scrolls_qasper.gin \\\n"
    "    --gin.INIT_FROM=runs/fire --gin.DATA_DIR=data/tasks --workdir=runs/fire_qasper\n"
    "  fire-lm finetune --pairs=faq.jsonl --gin.INIT_FROM=runs/fire --workdir=runs/fire_faq\n\n"
    "exit codes: the same as those of pretrain",
}
_SWEEP: dict[str, Any] = {
    "description": "Scores trained models at several lengths, on the same text at each length.\n"
    "Writes length_sweep.csv to each run directory, and a combined table and figure of all runs.\n"
    "Rows that are already in the table are not computed again.",
    "epilog": "examples:\n"
    "  fire-lm sweep runs/quickstart\n"
    "  fire-lm sweep runs/quickstart/rope --also='--gin.RoPE.scaling=@YaRN()'",
}
_REPORT: dict[str, Any] = {
    "description": "Writes a page, RUN/report/index.html, with the results of runs: sweeps,\n"
    "metrics and what the encodings learned. The runs are not changed.",
    "epilog": "examples:\n"
    "  fire-lm report runs/quickstart\n"
    "  fire-lm report runs/fire --against=runs/rope --output=report",
}
_EVALUATE: dict[str, Any] = {
    "description": "Measures the accuracy of runs on the synthetic task that they were trained on\n"
    "(configs/synthetic/), at each length. Writes length_accuracy.csv to each run directory,\n"
    "and a combined table and figure of all runs. Rows that are already in the table are not\n"
    "computed again. With a file from configs/tasks/, answers the examples of a text-to-text task\n"
    "instead, and writes predictions/ and task_scores.csv to each run directory. With --measure,\n"
    "computes a measure of your own, and writes measures/NAME.csv.",
    "epilog": "examples:\n  fire-lm evaluate runs/reverse --lengths=1-40,50,100,200,500\n"
    "  fire-lm evaluate runs/fire_my_task --gin_file=configs/tasks/base.gin \\\n"
    "    --import=my_package.tasks --gin.EVAL_LENGTHS=512,2048 --follow\n"
    "  fire-lm evaluate runs/fire --measure=my_package.my_measure.MyMeasure --lengths=512,2048",
}
_IMPORT: dict[str, Any] = {
    "description": "Writes a Hugging Face model, which must be GPT-2 of any size or the output of\n"
    "`fire-lm export`, as a run directory with a checkpoint at step 0. The run directory works\n"
    "with sweep, generate and INIT_FROM like any other.",
    "epilog": "example:\n"
    "  fire-lm import --from=gpt2 --output=runs/gpt2\n"
    "  fire-lm pretrain --gin_file=configs/runs/gpt2_new_positions.gin \\\n"
    "    --gin_file=configs/positions/fire.gin --workdir=runs/gpt2_fire",
}
_TEST_ENCODING: dict[str, Any] = {
    "description": "Checks the properties that every positional encoding must have, such as that\n"
    "the model is causal and that block-wise attention gives the same values. Explains each\n"
    "property that the encoding lacks. The repository and pytest are not needed.",
    "epilog": "examples:\n"
    "  fire-lm test-encoding my_package.my_encoding.Recency\n"
    "  fire-lm test-encoding recency.gin\n\n"
    "exit codes: 0 all properties hold; 1 one is missing; 2 the encoding cannot be loaded",
}
_GENERATE: dict[str, Any] = {
    "description": "Continues a prompt, or each prompt in a file, with a trained model: greedily,\n"
    "by sampling (--temperature, --top_k, --top_p, --samples), or by beam search (--beams).",
    "epilog": "examples:\n"
    "  fire-lm generate runs/quickstart/fire --prompt='def main(' --new_tokens=200\n"
    "  fire-lm generate runs/fire@1000 --prompts=prompts.jsonl --output=out.jsonl --beams=4\n\n"
    'Each line of --prompts is {"prompt": "TEXT"}, with an optional "id". Run the same command to\n'
    "resume: prompts whose results are in --output are not computed again.",
}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fire-lm", description="Pretraining with FIRE and competing positional encodings."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
    debug = Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show the traceback of an error")
    configured = [gin_arguments(), debug]

    def verb(name: str, *parents: Parser, **texts: Any) -> Parser:
        added: Parser = verbs.add_parser(name, parents=parents, **texts)
        return added

    add_pretrain(verb("pretrain", *configured, help="start or resume training", **_PRETRAIN))
    summary = "train a run's model on a task"
    add_finetune(verb("finetune", *configured, help=summary, **_FINETUNE))
    summary = "compile a run for a TPU slice, without a TPU"
    add_preflight(verb("preflight", *configured, help=summary))
    verb("grid", help="run a grid of encodings, seeds and bindings on this machine")
    add_checkpoints(verb("sweep", *configured, help="measure loss by length", **_SWEEP))
    summary = "measure a run's accuracy on a task, by length"
    add_evaluate(verb("evaluate", *configured, help=summary, **_EVALUATE))
    add_generate(verb("generate", *configured, help="generate text", **_GENERATE))
    add_export(verb("export", *configured, help="write a run for Hugging Face transformers"))
    add_import(verb("import", *configured, help="write a Hugging Face model as a run", **_IMPORT))
    add_report(verb("report", debug, help="draw a page of tables and figures", **_REPORT))
    add_corpus(verb("corpus", debug, help="write and check data sets"), debug)
    summary = "check the properties of an encoding"
    verb("test-encoding", debug, help=summary, **_TEST_ENCODING).add_argument(
        "encoding",
        metavar="ENCODING",
        help="module whose encodings are checked, MODULE.CLASS, or a gin file that configures one",
    )
    add_benches(verb("bench", help="compare time and memory"), debug)
    return parser


def gin_arguments() -> Parser:
    gin = Parser(add_help=False)
    gin.add_argument("--gin_file", action="append", default=[], help=_CONFIG_HELP)
    gin.add_argument(
        "--gin_search_paths",
        default="",
        help="comma-separated folders in which configuration files are looked up",
    )
    gin.add_argument(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="module whose dataclasses gin files can then configure (repeatable)",
    )
    summary = "bind a macro or parameter (repeatable)"
    gin.add_argument("--gin.NAME=VALUE", action="store_true", help=summary)  # see `cli.parse`
    return gin


def add_pretrain(pretrain: Parser) -> None:
    pretrain.add_argument("--workdir", help="run directory, local or gs://")
    pretrain.add_argument(
        "--dry_run", action="store_true", help="describe the run without starting it"
    )
    add_allow_config_change(pretrain)


def add_finetune(finetune: Parser) -> None:
    add_pretrain(finetune)
    finetune.add_argument(
        "--pairs",
        metavar="FILE",
        help='JSON lines {"inputs": "TEXT", "targets": "TEXT"} to train on, local or gs://',
    )


def add_allow_config_change(verb: Parser) -> None:
    verb.add_argument(
        "--allow_config_change",
        action="store_true",
        help="continue in a workdir whose saved configuration differs",
    )


def add_preflight(preflight: Parser) -> None:
    preflight.add_argument(
        "--slice", required=True, help="TPU slice, such as v4-256, v4:128, v4:4x4x8 or 2xv4-128"
    )
    preflight.add_argument("--workdir", help="run directory to check, local or gs://")
    add_allow_config_change(preflight)
    preflight.add_argument(
        "--all_lengths",
        action="store_true",
        help="compile for every evaluation length, not only the longest",
    )
    preflight.add_argument(
        "--generate",
        type=three_numbers,
        metavar="BATCHxPROMPTxNEW",
        help="also compile generation of NEW tokens for each of BATCH prompts of PROMPT tokens",
    )
    preflight.add_argument(
        "--beams", type=number, help="beams for --generate (default: greedy decoding)"
    )
    preflight.add_argument("--json", metavar="FILE", help="also write the results to FILE as JSON")


def add_checkpoints(verb: Parser) -> None:
    """Add the arguments of all verbs that evaluate checkpoints."""
    verb.add_argument(
        "runs",
        metavar="RUN[@STEPS]",
        nargs="+",
        help="a run or a folder of runs; RUN@1000,2000 or RUN@all selects checkpoints",
    )
    verb.add_argument(
        "--follow", action="store_true", help="score each new checkpoint until training has ended"
    )
    verb.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="'FLAGS'",
        help="--gin_file= and --gin. flags of an additional setting under which to evaluate each "
        "run (repeatable)",
    )
    verb.add_argument("--output", help="folder for the combined table and figure")
    verb.add_argument(
        "--dry_run", action="store_true", help="print what would be measured, and stop"
    )


def add_export(export: Parser) -> None:
    export.add_argument("run", metavar="RUN[@STEP]")
    export.add_argument(
        "--output", required=True, metavar="DIR", help="new local folder to write to"
    )
    export.add_argument(
        "--context_length",
        type=number,
        help="number of tokens to support (default: 16 times the training length; a learned "
        "table fixes its own length)",
    )


def add_import(imported: Parser) -> None:
    imported.add_argument(
        "--from",
        required=True,
        dest="source",
        metavar="DIR",
        help="folder with GPT-2, or a folder that `fire-lm export` wrote",
    )
    imported.add_argument(
        "--output", required=True, metavar="RUN", help="new run directory to write to"
    )


def add_report(report: Parser) -> None:
    report.add_argument(
        "runs", metavar="RUN", nargs="+", help="a run, or a folder of runs or of results"
    )
    report.add_argument("--output", help="folder for the page (default: RUN/report)")
    report.add_argument(
        "--against", metavar="RUN", help="a run or a folder whose losses are compared with these"
    )


def add_evaluate(evaluate: Parser) -> None:
    add_checkpoints(evaluate)
    evaluate.add_argument(
        "--lengths",
        type=ranges,
        metavar="A-B,C",
        help="lengths of the exercises or inputs (default: EVAL_LENGTHS)",
    )
    evaluate.add_argument(
        "--measure",
        metavar="MODULE.CLASS",
        help="measure of your own, whose rows go to RUN/measures/ (docs/add_a_measure.md)",
    )
    evaluate.add_argument(
        "--positions",
        choices=("plain", "even", "random"),
        help="positions of the tokens, for a model trained at random positions (default: as "
        "configured)",
    )
    evaluate.add_argument(
        "--sequences", type=number, help="exercises per length of a synthetic task (default: 128)"
    )


def add_generate(generate: Parser) -> None:
    generate.add_argument("run", metavar="RUN[@STEP]")
    prompts = generate.add_mutually_exclusive_group(required=True)
    prompts.add_argument(
        "--prompt", metavar="TEXT", help="prompt whose continuation is printed as it is generated"
    )
    prompts.add_argument(
        "--prompts", metavar="FILE", help="JSON lines of prompts; - reads standard input"
    )
    generate.add_argument(
        "--output", metavar="FILE", help="JSON lines of results (default: standard output)"
    )
    generate.add_argument(
        "--new_tokens", type=number, default=64, help="maximum number of tokens to generate"
    )
    generate.add_argument("--temperature", type=float, help="divisor of the logits (default: 1)")
    generate.add_argument("--top_k", type=number, help="sample from the K likeliest tokens")
    generate.add_argument(
        "--top_p",
        type=float,
        help="sample from the smallest set of likeliest tokens whose total probability reaches "
        "this value",
    )
    generate.add_argument("--samples", type=number, help="samples for each prompt (default: 1)")
    generate.add_argument("--beams", type=number, help="number of hypotheses in beam search")
    generate.add_argument(
        "--alpha", type=float, help="length penalty of beam search (default: 0.6)"
    )
    generate.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="text that ends a continuation (repeatable)",
    )
    generate.add_argument("--seed", type=seed, default=0, help="seed for sampling (default: 0)")
    generate.add_argument("--batch_size", type=number, default=8, help="prompts per batch")
    generate.add_argument(
        "--context_length",
        type=number,
        help="tokens of a prompt and its continuation, for encodings that depend on this number "
        "(default: the number that the longest prompt needs)",
    )
