"""The arguments of every verb, and what they are for."""

from __future__ import annotations

import argparse
from typing import Any

from fire_lm import __version__
from fire_lm.cli.argument_types import Parser, number, ranges, seed, three_numbers
from fire_lm.cli.bench_arguments import add_benches
from fire_lm.cli.corpus_arguments import add_corpus

_CONFIG_HELP = "later files win; configs/ in the repository has them"


_PRETRAIN: dict[str, Any] = {
    "description": "Trains the model of a configuration in --workdir, or resumes it: the same\n"
    "command continues from the newest checkpoint.",
    "epilog": "example:\n"
    "  fire-lm pretrain --gin_file=configs/runs/quickstart.gin \\\n"
    "    --gin_file=configs/positions/fire.gin --gin.TRAIN_STEPS=200 --workdir=runs/fire\n\n"
    "exit codes: 0 done; 1 failed while running; 2 bad usage or configuration; 3 stopped by\n"
    "SIGTERM or one Ctrl-C, after saving; 130 ended by Ctrl-C, without saving",
}
_FINETUNE: dict[str, Any] = {
    "description": "Trains a run's model on a task in --workdir, or resumes it: the same command\n"
    "continues from the newest checkpoint. The model and its vocabulary are those of INIT_FROM.",
    "epilog": "example:\n"
    "  fire-lm finetune --gin_file=configs/finetune/scrolls_qasper.gin \\\n"
    "    --gin.INIT_FROM=runs/fire --gin.DATA_DIR=data/tasks --workdir=runs/fire_qasper\n\n"
    "exit codes: as pretrain",
}
_SWEEP: dict[str, Any] = {
    "description": "Scores trained models at several lengths, the same text at each. Leaves\n"
    "length_sweep.csv and .png beside each run and for all of them; what is in the table\n"
    "already is not computed again.",
    "epilog": "examples:\n"
    "  fire-lm sweep runs/quickstart\n"
    "  fire-lm sweep runs/quickstart/rope --also='--gin.RoPE.scaling=@YaRN()'",
}
_REPORT: dict[str, Any] = {
    "description": "Draws what runs have left (sweeps, metrics, what the encodings learned) as\n"
    "one page, RUN/report/index.html. It changes no run.",
    "epilog": "examples:\n"
    "  fire-lm report runs/quickstart\n"
    "  fire-lm report runs/fire --against=runs/rope --output=report",
}
_EVALUATE: dict[str, Any] = {
    "description": "Measures the accuracy of runs on the synthetic task that they were trained on\n"
    "(configs/synthetic/), at each length. Leaves length_accuracy.csv and .png beside each run\n"
    "and for all of them; what is in the table already is not computed again.",
    "epilog": "example:\n  fire-lm evaluate runs/reverse --lengths=1-40,50,100,200,500",
}
_IMPORT: dict[str, Any] = {
    "description": "Writes a model of Hugging Face as a run directory with a checkpoint at step\n"
    "0, which sweep, generate and INIT_FROM read as they read others: GPT-2 of any size, or a\n"
    "folder of `fire-lm export`.",
    "epilog": "example:\n"
    "  fire-lm import --from=gpt2 --output=runs/gpt2\n"
    "  fire-lm pretrain --gin_file=configs/runs/gpt2_new_positions.gin \\\n"
    "    --gin_file=configs/positions/fire.gin --workdir=runs/gpt2_fire",
}
_GENERATE: dict[str, Any] = {
    "description": "Continues a prompt, or each prompt of a file, with a trained model: greedily,\n"
    "by sampling (--temperature, --top_k, --top_p, --samples), or by beam search (--beams).",
    "epilog": "examples:\n"
    "  fire-lm generate runs/quickstart/fire --prompt='def main(' --new_tokens=200\n"
    "  fire-lm generate runs/fire@1000 --prompts=prompts.jsonl --output=out.jsonl --beams=4\n\n"
    'A line of --prompts is {"prompt": "TEXT"}, with "id" if you like. The same command resumes:\n'
    "prompts whose results are in --output are not computed again.",
}


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fire-lm", description="Pretraining for FIRE and its rivals.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
    debug = Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show a traceback with an error")
    configured = [gin_arguments(), debug]

    def verb(name: str, *parents: Parser, **texts: Any) -> Parser:
        added: Parser = verbs.add_parser(name, parents=parents, **texts)
        return added

    add_pretrain(verb("pretrain", *configured, help="train, or resume, a model", **_PRETRAIN))
    told = "train a run's model on a task"
    add_pretrain(verb("finetune", *configured, help=told, **_FINETUNE))
    told = "compile a run for a TPU slice, without a TPU"
    add_preflight(verb("preflight", *configured, help=told))
    add_sweep(verb("sweep", *configured, help="loss against sequence length", **_SWEEP))
    told = "accuracy of a run on its synthetic task, by length"
    add_evaluate(verb("evaluate", *configured, help=told, **_EVALUATE))
    add_generate(verb("generate", *configured, help="text", **_GENERATE))
    add_export(verb("export", *configured, help="a run as a folder of Hugging Face transformers"))
    add_import(verb("import", *configured, help="a folder of transformers as a run", **_IMPORT))
    add_report(verb("report", debug, help="a page of tables and figures", **_REPORT))
    add_corpus(verb("corpus", debug, help="write and check text"), debug)
    add_benches(verb("bench", help="time and memory, side by side"), debug)
    return parser


def gin_arguments() -> Parser:
    gin = Parser(add_help=False)
    gin.add_argument("--gin_file", action="append", default=[], help=_CONFIG_HELP)
    gin.add_argument("--gin_search_paths", default="", help="comma-separated folders")
    gin.add_argument(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="MODULE",
        help="a module of your own, whose dataclasses gin files may name (repeat)",
    )
    gin.add_argument("--gin.NAME", metavar="VALUE", help="binds a macro or a parameter (repeat)")
    return gin


def add_pretrain(pretrain: Parser) -> None:
    pretrain.add_argument("--workdir", help="run directory, local or gs://")
    pretrain.add_argument("--dry_run", action="store_true", help="describe the run and stop")
    pretrain.add_argument(
        "--allow_config_change",
        action="store_true",
        help="continue in a workdir whose saved configuration differs",
    )


def add_preflight(preflight: Parser) -> None:
    preflight.add_argument("--slice", required=True, help="v4-256; v4:128, v4:4x4x8; 2xv4-128")
    preflight.add_argument("--workdir", help="run directory to try, local or gs://")
    preflight.add_argument("--all_lengths", action="store_true", help="not the longest alone")
    preflight.add_argument(
        "--generate",
        type=three_numbers,
        metavar="BATCHxPROMPTxNEW",
        help="compile generation, too: prompts, tokens of each, new tokens, as 8x8192x128",
    )
    preflight.add_argument("--beams", type=number, help="of that generation (greedy)")
    preflight.add_argument("--json", metavar="FILE", help="the results for programs")


def add_sweep(sweep: Parser) -> None:
    sweep.add_argument(
        "runs", metavar="RUN[@STEPS]", nargs="+", help="run, or folder; @1000,2000; @all"
    )
    sweep.add_argument(
        "--follow", action="store_true", help="score each checkpoint until training has ended"
    )
    sweep.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="'FLAGS'",
        help="--gin_file= and --gin. flags of one more setting to score beside the plain (repeat)",
    )
    sweep.add_argument("--output", help="folder of the combined table and figure")
    sweep.add_argument("--dry_run", action="store_true", help="say what would be scored and stop")


def add_export(export: Parser) -> None:
    export.add_argument("run", metavar="RUN[@STEP]")
    export.add_argument("--output", required=True, metavar="DIR", help="a new local folder")
    export.add_argument(
        "--context_length",
        type=number,
        help="tokens to reach, where an encoding depends on it (16 times those of training)",
    )


def add_import(imported: Parser) -> None:
    imported.add_argument(
        "--from", required=True, dest="source", metavar="DIR", help="GPT-2, or of `fire-lm export`"
    )
    imported.add_argument("--output", required=True, metavar="RUN", help="a new run directory")


def add_report(report: Parser) -> None:
    report.add_argument("runs", metavar="RUN", nargs="*", help="run, folder of runs or of results")
    report.add_argument("--output", help="folder of the page (RUN/report)")
    report.add_argument(
        "--against", default="paper", metavar="paper|RUN", help="beside which losses (paper)"
    )
    report.add_argument("--bench", metavar="FILE", help="times, of `bench model --json`")
    report.add_argument(
        "--list", action="store_true", help="configs/paper/ as a table, and what was run of it"
    )


def add_evaluate(evaluate: Parser) -> None:
    evaluate.add_argument(
        "runs", metavar="RUN[@STEPS]", nargs="+", help="run, or folder; @1000,2000; @all"
    )
    evaluate.add_argument(
        "--lengths", type=ranges, metavar="A-B,C", help="of the exercises (EVAL_LENGTHS)"
    )
    evaluate.add_argument(
        "--positions",
        choices=("plain", "even", "random"),
        help="where tokens stand, of a model trained at randomized positions (as it says itself)",
    )
    evaluate.add_argument(
        "--sequences", type=number, default=128, help="of each length (%(default)s)"
    )
    evaluate.add_argument("--output", help="folder of the combined table and figure")
    evaluate.add_argument(
        "--dry_run", action="store_true", help="say what would be measured and stop"
    )


def add_generate(generate: Parser) -> None:
    generate.add_argument("run", metavar="RUN[@STEP]")
    prompts = generate.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT", help="the answer is printed as it is written")
    prompts.add_argument("--prompts", metavar="FILE", help="JSON lines; - is standard input")
    generate.add_argument("--output", metavar="FILE", help="JSON lines of results (printed)")
    generate.add_argument("--new_tokens", type=number, default=64, help="at most (%(default)s)")
    generate.add_argument("--temperature", type=float, help="divides the logits (1)")
    generate.add_argument("--top_k", type=number, help="draw from the likeliest K tokens")
    generate.add_argument("--top_p", type=float, help="from the likeliest with this probability")
    generate.add_argument("--samples", type=number, help="drawn for each prompt (1)")
    generate.add_argument("--beams", type=number, help="search with so many hypotheses")
    generate.add_argument("--alpha", type=float, help="length penalty of beam search (0.6)")
    generate.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="ends a continuation (repeat)"
    )
    generate.add_argument("--seed", type=seed, default=0, help="of sampling (%(default)s)")
    generate.add_argument("--batch_size", type=number, default=8, help="prompts (%(default)s)")
    generate.add_argument(
        "--context_length",
        type=number,
        help="tokens of prompt and answer, where an encoding depends on it (of the longest prompt)",
    )
