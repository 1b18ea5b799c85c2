"""The arguments of `fire-lm corpus`."""

from __future__ import annotations

from fire_lm.cli.argument_types import Parser, names, number, numbers, seed, split_rule


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

    add_tasks(parts.add_parser("tasks", parents=[debug], help="data sets of downstream tasks"))


def add_tasks(tasks: Parser) -> None:
    """Official data sets of a suite, or exercises that a seed makes, as TFDS."""
    tasks.add_argument("--suite", required=True, help="scrolls, glue_super_glue, long_eval, ...")
    tasks.add_argument("--data_dir", required=True, help="TFDS data directory to write")
    tasks.add_argument("--source", metavar="FOLDER", help="of JSON lines, zip files, or TFDS")
    tasks.add_argument("--tasks", type=names, default=[], metavar="A,B", help="all of the suite")
    tasks.add_argument(
        "--sizes", type=numbers, metavar="A,B", help="of generated tests (the benchmark's)"
    )
    tasks.add_argument(
        "--train_size", type=number, help="the largest in training (the smallest of --sizes)"
    )
    tasks.add_argument("--rows", type=number, help="generated for training (10000)")
    tasks.add_argument("--examples", type=number, help="generated for each size (50)")
    tasks.add_argument("--seed", type=seed, help="of what is generated (0)")


def add_beam(verb: Parser) -> None:
    """Work for Apache Beam."""
    verb.add_argument("--runner", help="of Apache Beam, such as DirectRunner or DataflowRunner")
    verb.add_argument("--runner_options", action="append", metavar="--NAME=VALUE", help="for it")
