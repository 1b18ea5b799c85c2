"""The arguments of `fire-lm bench`."""

from __future__ import annotations

from fire_lm.cli.argument_types import Parser, names, number, numbers

# Of bench/encodings.py, which is not imported for --help.
_BENCH_ENCODINGS = "nope,fire,fire_s,fire_g,fire_appendix_e,alibi,t5,kerple_log,sandwich,rope"
_BESIDE_NOPE = "beside nope, which the others are divided by"


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
