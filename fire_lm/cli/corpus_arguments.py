"""The arguments of `fire-lm corpus`."""

from __future__ import annotations

from fire_lm.cli.argument_types import Parser, names, number, numbers, seed, split_rule


def add_corpus(corpus: Parser, debug: Parser) -> None:
    """Add the arguments of `fire-lm corpus`, which writes a data set, and of its parts."""
    corpus.description = (
        "Writes documents as a TFDS data set: the documents in --from or, by default, the source\n"
        "code of the installed Python and JAX, with the help texts of Python."
    )
    corpus.add_argument("--data_dir", help="folder to write to; pass it to other verbs as DATA_DIR")
    corpus.add_argument(
        "--from",
        dest="source",
        help="file or folder of documents: text, .jsonl or .parquet, optionally as .gz or .zst",
    )
    corpus.add_argument("--name", help="name of the data set, such as arxiv or github")
    corpus.add_argument(
        "--text_field",
        help="field of JSON and Parquet records that contains the text (default: text)",
    )
    corpus.add_argument(
        "--whole_files", action="store_true", default=None, help="treat each file as one document"
    )
    corpus.add_argument(
        "--split_on",
        type=split_rule,
        metavar="blank_lines|BYTES",
        help="split text files into documents at blank lines, or into pieces of up to BYTES bytes",
    )
    corpus.add_argument(
        "--validation_percent",
        type=float,
        help="percentage of documents in the validation split (default: 6)",
    )
    add_beam(corpus)
    _add_parts(corpus, debug)


def _add_parts(corpus: Parser, debug: Parser) -> None:
    """Add the parsers of `corpus vocab`, `corpus blocks`, `corpus check` and `corpus tasks`."""
    parts = corpus.add_subparsers(dest="part", metavar="PART", parser_class=Parser)
    folder = Parser(add_help=False)
    folder.add_argument("--data_dir", required=True, help="TFDS data directory")
    written = Parser(add_help=False, parents=[folder])
    written.add_argument("--tfds_name", help="name of the data set, if the directory has several")
    written.add_argument(
        "--vocabulary", default="bytes", help="bytes, the path of a SentencePiece model, or hf:DIR"
    )

    _add_vocab(parts.add_parser("vocab", parents=[folder, debug], help="train a vocabulary"))

    blocks = parts.add_parser(
        "blocks", parents=[written, debug], help="tokenise a data set ahead of time"
    )
    blocks.add_argument("--output", required=True, help="folder to write to, local or gs://")
    blocks.add_argument(
        "--splits", type=names, default=[], metavar="A,B", help="splits to tokenise (default: all)"
    )
    blocks.add_argument(
        "--parts", type=number, help="parts per split (default: one per gigabyte of text)"
    )
    add_beam(blocks)

    check = parts.add_parser(
        "check", parents=[written, debug], help="report what a data set contains"
    )
    check.add_argument(
        "--lengths",
        type=numbers,
        default="512,1024,2048,4096,8192",
        metavar="A,B",
        help="lengths of the rows to describe",
    )
    check.add_argument(
        "--documents",
        type=number,
        default=100_000,
        help="maximum number of documents to read from each split",
    )
    check.add_argument(
        "--output", default="corpus_check.png", help="file for the figure of document lengths"
    )

    summary = "write data sets of downstream tasks"
    add_tasks(parts.add_parser("tasks", parents=[debug], help=summary))


def _add_vocab(vocab: Parser) -> None:
    """Add the arguments of `corpus vocab`, except --data_dir."""
    vocab.add_argument(
        "--tfds_name",
        type=names,
        metavar="A,B",
        help="names of the data sets to read in equal parts, if the directory has several; inputs "
        "and targets of a task's data set count as documents",
    )
    vocab.add_argument("--size", type=number, default=32_000, help="number of pieces")
    vocab.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="file to write; pass it to other verbs as VOCABULARY",
    )
    vocab.add_argument("--megabytes", type=number, default=64, help="megabytes of text to train on")
    vocab.add_argument(
        "--split_digits", action="store_true", help="make every digit a piece of its own"
    )


def add_tasks(tasks: Parser) -> None:
    """Add the arguments of `corpus tasks`, which writes official or generated data sets."""
    tasks.add_argument("--suite", required=True, help="name of the suite, such as scrolls")
    tasks.add_argument("--data_dir", required=True, help="TFDS data directory to write to")
    tasks.add_argument(
        "--source",
        metavar="FOLDER",
        help="folder with the official data: JSON lines, zip files or TFDS data sets",
    )
    tasks.add_argument(
        "--tasks", type=names, default=[], metavar="A,B", help="tasks to write (default: all)"
    )
    tasks.add_argument(
        "--sizes",
        type=numbers,
        metavar="A,B",
        help="sizes of generated tests (default: the benchmark's)",
    )
    tasks.add_argument(
        "--train_size", type=number, help="largest size in training (default: smallest of --sizes)"
    )
    tasks.add_argument("--rows", type=number, help="number of training rows (default: 10000)")
    tasks.add_argument(
        "--examples",
        type=number,
        help="number of rows for validation, and for tests of each size (default: 50)",
    )
    tasks.add_argument("--seed", type=seed, help="seed for generating exercises (default: 0)")


def add_beam(verb: Parser) -> None:
    """Add the arguments that select a runner of Apache Beam."""
    verb.add_argument("--runner", help="Apache Beam runner, such as DirectRunner or DataflowRunner")
    verb.add_argument(
        "--runner_options",
        action="append",
        metavar="--NAME=VALUE",
        help="an option for the runner (repeatable)",
    )
