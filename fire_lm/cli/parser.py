"""The arguments of every verb, and what they are for."""

from __future__ import annotations

import argparse
import re
import unicodedata
from typing import Any, NoReturn

from fire_lm import __version__
from fire_lm.errors import UserError, nearest

# Of bench/encodings.py, which is not imported for --help.
_BENCH_ENCODINGS = "nope,fire,fire_s,fire_g,fire_appendix_e,alibi,t5,kerple_log,sandwich,rope"
_BESIDE_NOPE = "beside nope, which the others are divided by"
_CONFIG_HELP = "later files win; configs/ in the repository has them"


_PRETRAIN: dict[str, Any] = {
    "description": "Trains the model of a configuration in --workdir, or resumes it: the same\n"
    "command goes on from the newest checkpoint.",
    "epilog": "example:\n"
    "  fire-lm pretrain --gin_file=configs/runs/quickstart.gin \\\n"
    "    --gin_file=configs/positions/fire.gin --gin.TRAIN_STEPS=200 --workdir=runs/fire\n\n"
    "exit codes: 0 done; 1 failed while running; 2 bad usage or configuration; 3 stopped by\n"
    "SIGTERM or one Ctrl-C, after saving; 130 ended by Ctrl-C, without saving",
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


class Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any):
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings, allow_abbrev=False)  # --allow is not --allow_config_change

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"(\w+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = [name.strip(" '") for name in wrong[3].split(",")]
            if near := nearest(wrong[2], known):
                raise UserError(f"there is no {wrong[1]} {wrong[2]!r}: did you mean {near}?")
        raise UserError(f"{message}\n`{self.prog} --help` lists what there is")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fire-lm", description="Pretraining for FIRE and its rivals.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=Parser)
    debug = Parser(add_help=False)
    debug.add_argument("--debug", action="store_true", help="show a traceback with an error")
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

    pretrain = verbs.add_parser(
        "pretrain", parents=[gin, debug], help="train, or resume, a model", **_PRETRAIN
    )
    pretrain.add_argument("--workdir", help="run directory, local or gs://")
    pretrain.add_argument("--dry_run", action="store_true", help="describe the run and stop")
    pretrain.add_argument(
        "--allow_config_change",
        action="store_true",
        help="go on in a workdir whose saved configuration differs",
    )

    preflight = verbs.add_parser(
        "preflight", parents=[gin, debug], help="compile a run for a TPU slice, without a TPU"
    )
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

    sweep = verbs.add_parser(
        "sweep", parents=[gin, debug], help="loss against sequence length", **_SWEEP
    )
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

    add_evaluate(
        verbs.add_parser(
            "evaluate",
            parents=[gin, debug],
            help="accuracy of a run on its synthetic task, by length",
            **_EVALUATE,
        )
    )

    add_generate(verbs.add_parser("generate", parents=[gin, debug], help="text", **_GENERATE))

    export = verbs.add_parser(
        "export", parents=[gin, debug], help="a run as a folder of Hugging Face transformers"
    )
    export.add_argument("run", metavar="RUN[@STEP]")
    export.add_argument("--output", required=True, metavar="DIR", help="a new local folder")
    export.add_argument(
        "--context_length",
        type=number,
        help="tokens to reach, where an encoding depends on it (16 times those of training)",
    )

    imported = verbs.add_parser(
        "import", parents=[gin, debug], help="a folder of transformers as a run", **_IMPORT
    )
    imported.add_argument(
        "--from", required=True, dest="source", metavar="DIR", help="GPT-2, or of `fire-lm export`"
    )
    imported.add_argument("--output", required=True, metavar="RUN", help="a new run directory")

    report = verbs.add_parser(
        "report", parents=[debug], help="a page of tables and figures", **_REPORT
    )
    report.add_argument("runs", metavar="RUN", nargs="*", help="run, folder of runs or of results")
    report.add_argument("--output", help="folder of the page (RUN/report)")
    report.add_argument(
        "--against", default="paper", metavar="paper|RUN", help="beside which losses (paper)"
    )
    report.add_argument("--bench", metavar="FILE", help="times, of `bench model --json`")
    report.add_argument(
        "--list", action="store_true", help="configs/paper/ as a table, and what was run of it"
    )

    add_corpus(verbs.add_parser("corpus", parents=[debug], help="write and check text"), debug)

    add_benches(verbs.add_parser("bench", help="time and memory, side by side"), debug)
    return parser


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


def add_benches(benches: Parser, debug: Parser) -> None:
    subjects = benches.add_subparsers(dest="subject", required=True, parser_class=Parser)
    rounds = Parser(add_help=False)
    rounds.add_argument("--rounds", type=number, default=3, help="of each, in turns")
    rounds.add_argument("--json", metavar="FILE", help="the results for programs")

    reading = subjects.add_parser(
        "data", parents=[debug, rounds], help="tokens per second on the fly and from blocks"
    )
    reading.add_argument("--data_dir", required=True, help="a TFDS data set with a train split")
    reading.add_argument("--tfds_name", help="data set in it, where there are several")
    reading.add_argument(
        "--vocabulary", default="bytes", help="or a SentencePiece model's path, or hf:DIR"
    )
    reading.add_argument("--length", type=number, default=2048, help="tokens of a row")
    reading.add_argument("--tokens", type=number, default=2**24, help="of a round")

    model = subjects.add_parser(
        "model", parents=[debug, rounds], help="what an encoding costs in the whole model"
    )
    model.add_argument("--size", choices=["tiny", "125m", "350m"], default="125m")
    add_lists(
        model,
        ("lengths", "512,1024,2048,4096,8192", "tokens of a sequence"),
        ("encodings", "fire,fire_s,alibi,t5,kerple_log,sandwich,rope", _BESIDE_NOPE),
    )
    model.add_argument(
        "--tokens_per_batch", type=number, help="at each length (8192; on a CPU 2048)"
    )

    model.add_argument(
        "--protocol",
        choices=["best", "paper"],
        default="best",
        help="the least of the rounds on one device; or Fig. 5's, their mean on all devices of the "
        "host, with --rounds=10",
    )

    generate = subjects.add_parser(
        "generate", parents=[debug, rounds], help="what an encoding costs in generation"
    )
    generate.add_argument("--size", choices=["tiny", "125m", "350m"], default="125m")
    add_lists(
        generate,
        ("lengths", "2048", "tokens of a prompt"),
        ("encodings", "fire,fire_s,alibi,t5,kerple_log,sandwich,rope", _BESIDE_NOPE),
    )
    generate.add_argument("--new_tokens", type=number, default=32, help="(%(default)s)")
    generate.add_argument("--batch_size", type=number, default=1, help="prompts (%(default)s)")
    generate.add_argument("--peer", choices=["torch"], help="the same models in transformers")

    bench = subjects.add_parser(
        "attention", parents=[debug, rounds], help="what an encoding costs in two blocks"
    )
    add_lists(
        bench,
        ("lengths", "2048", "tokens of the two blocks"),
        ("encodings", _BENCH_ENCODINGS, _BESIDE_NOPE),
        ("implementations", "blockwise", "of attention"),
        ("memory", "8192,16384", "tokens of one FIRE attention"),
    )
    bench.add_argument("--peer", choices=["torch"], help="the same model in another library")
    bench.add_argument(
        "--tpu",
        choices=["v4-8"],
        help="no times: the kernels as compiled for this slice, on a machine without a TPU",
    )


def add_lists(verb: Parser, *lists: tuple[str, str, str]) -> None:
    """Comma-separated (name, default, help)."""
    for name, default, help in lists:
        kind = names if name in ("encodings", "implementations") else numbers
        verb.add_argument(
            f"--{name}", type=kind, default=default, metavar="A,B", help=f"{help} (%(default)s)"
        )


def add_corpus(corpus: Parser, debug: Parser) -> None:
    """The bundled text, or --from files, as a data set; parts of their own below."""
    corpus.description = "Without --from: the text that every machine has."
    corpus.add_argument("--data_dir", help="folder to write, for DATA_DIR")
    corpus.add_argument("--from", dest="source", help="text, .jsonl, .parquet; also .gz, .zst")
    corpus.add_argument("--name", help="of the data set: arxiv, github, ...")
    corpus.add_argument("--text_field", help="of JSON and Parquet (text)")
    corpus.add_argument(
        "--whole_files", action="store_true", default=None, help="each file is a document"
    )
    corpus.add_argument(
        "--split_on",
        type=split_rule,
        metavar="blank_lines|BYTES",
        help="a text file is many documents: between blank lines, or pieces of so many bytes",
    )
    corpus.add_argument("--validation_percent", type=float, help="of the documents (6)")
    add_beam(corpus)
    parts = corpus.add_subparsers(dest="part", metavar="PART", parser_class=Parser)
    written = Parser(add_help=False)
    written.add_argument("--data_dir", required=True, help="TFDS data directory")
    written.add_argument("--tfds_name", help="data set in it, where there are several")

    vocab = parts.add_parser("vocab", parents=[written, debug], help="train a vocabulary")
    vocab.add_argument("--size", type=number, default=32_000, help="pieces (%(default)s)")
    vocab.add_argument("--output", required=True, metavar="FILE", help="for VOCABULARY")
    vocab.add_argument("--megabytes", type=number, default=64, help="of text (%(default)s)")

    blocks = parts.add_parser("blocks", parents=[written, debug], help="tokenise it once")
    blocks.add_argument("--output", required=True, help="directory of the blocks, local or gs://")
    blocks.add_argument(
        "--vocabulary", default="bytes", help="or a SentencePiece model's path, or hf:DIR"
    )
    blocks.add_argument("--splits", type=names, default=[], metavar="A,B", help="all by default")
    blocks.add_argument("--parts", type=number, help="of each split (one a gigabyte of text)")
    add_beam(blocks)

    check = parts.add_parser("check", parents=[written, debug], help="what a data set holds")
    check.add_argument("--vocabulary", default="bytes", help="as VOCABULARY (%(default)s)")
    lengths = "512,1024,2048,4096,8192"
    check.add_argument(
        "--lengths", type=numbers, default=lengths, metavar="A,B", help="(%(default)s)"
    )
    check.add_argument("--documents", type=number, default=100_000, help="a split (%(default)s)")
    check.add_argument("--output", default="corpus_check.png", help="the picture (%(default)s)")


def add_beam(verb: Parser) -> None:
    """Work for Apache Beam."""
    verb.add_argument("--runner", help="of Apache Beam, such as DirectRunner or DataflowRunner")
    verb.add_argument("--runner_options", action="append", metavar="--NAME=VALUE", help="for it")


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text:.20}' is not a whole number of 1 or more")
    if len(text) > 18 or int(text) >= 2**31:  # as settings are, in int32
        raise argparse.ArgumentTypeError(f"{text[:20]} is too large: it must be less than {2**31}")
    return int(text)


def ranges(text: str) -> tuple[int, ...]:
    """Numbers and ranges with both ends, ascending, each once."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = number(first), number(last or first)
        if low > high or high - low >= 100_000:
            raise argparse.ArgumentTypeError(f"'{part:.20}' is not a range such as 1-500")
        found |= set(range(low, high + 1))
    return tuple(sorted(found))


def three_numbers(text: str) -> tuple[int, int, int]:
    if len(parts := text.split("x")) != 3:
        raise argparse.ArgumentTypeError(f"'{text:.20}' is not of the form BATCHxPROMPTxNEW")
    batch, prompt, new_tokens = map(number, parts)
    return batch, prompt, new_tokens


def seed(text: str) -> int:
    return 0 if text == "0" else number(text)


def split_rule(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() else text


def numbers(text: str) -> list[int]:
    return [number(part) for part in names(text)]


def names(text: str) -> list[str]:
    """Comma-separated."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def check_characters(parsed: argparse.Namespace, bindings: list[str]) -> None:
    """Raises UserError for control characters, and for bytes that are no UTF-8: no path or value
    has them on purpose, and they fail late, or in the middle of a line that is printed."""
    given = [(_flag(name), value) for name, value in vars(parsed).items()]
    given += [(f"--gin.{name}", binding) for binding in bindings for name in [_name(binding)]]
    for flag, value in given:
        quoted = ("--also", "--gin.", "--prompt", "--stop")  # over several lines
        allowed = "\n\t" if flag.startswith(quoted) else ""
        for text in value if isinstance(value, list) else [value]:
            for character in text if isinstance(text, str) else "":
                if unicodedata.category(character) in ("Cc", "Cs") and character not in allowed:
                    raise UserError(f"{flag} holds the character {character!r}: remove it")


def _flag(name: str) -> str:
    """The flag of an argument on the command line."""
    return {"runs": "RUN", "source": "--from"}.get(name, f"--{name}")


def _name(binding: str) -> str:
    return binding.partition("=")[0]


def check_not_empty(parsed: argparse.Namespace) -> None:
    """Raises UserError for an argument without a value, as of a shell variable that is not set. An
    empty path would be the working directory, or the root of the file system."""
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list) else [value]:
            if one == "" and name != "gin_search_paths":
                raise UserError(f"{_flag(name)} is empty: is a shell variable not set?")
