"""The arguments of `fire-lm bench`."""

from __future__ import annotations

from fire_lm.bench.arguments import ATTENTION
from fire_lm.cli.argument_types import Parser, names_or_none, number, numbers_or_none

_BESIDE_NOPE = "encodings to compare with nope"


def add_benches(benches: Parser, debug: Parser) -> None:
    subjects = benches.add_subparsers(dest="subject", required=True, parser_class=Parser)

    def subject(name: str, summary: str, rounds: int | None = 3) -> Parser:
        added: Parser = subjects.add_parser(name, parents=[debug], help=summary)
        added.add_argument(
            "--rounds",
            type=number,
            default=rounds,
            help="rounds; every contestant is timed once per round (default: 3)",
        )
        added.add_argument("--json", metavar="FILE", help="also write the results to FILE as JSON")
        return added

    _add_reading(subject("data", "measure the speed of reading text on the fly and from blocks"))
    _add_model(subject("model", "measure the cost of each encoding in a complete model"))
    _add_generate(subject("generate", "measure the cost of each encoding in text generation"))
    summary = "measure the cost of each encoding in two layers"
    _add_attention(subject("attention", summary, rounds=None))


def _add_models(verb: Parser, lengths: str, measured: str) -> None:
    """Add the arguments that select models and lengths; `measured` says what has these lengths."""
    verb.add_argument("--size", choices=["tiny", "125m", "350m"], default="125m")
    add_lists(
        verb,
        ("lengths", lengths, measured),
        ("encodings", "fire,fire_s,alibi,t5,kerple_log,sandwich,rope", _BESIDE_NOPE),
    )


def _add_model(model: Parser) -> None:
    _add_models(model, "512,1024,2048,4096,8192", "tokens per sequence")
    model.add_argument(
        "--tokens_per_batch",
        type=number,
        help="tokens per batch on each device, at each length (default: 8192, or 2048 on a CPU)",
    )
    model.add_argument(
        "--protocol",
        choices=["best", "paper"],
        default="best",
        help="best: the best round on one device; paper: the mean of the rounds on all devices of "
        "the host, as in Fig. 5, with --rounds=10",
    )
    model.add_argument(
        "--peer", choices=["torch"], help="compare training steps with the same models in PyTorch"
    )


def _add_generate(generate: Parser) -> None:
    _add_models(generate, "2048", "tokens per prompt")
    generate.add_argument("--new_tokens", type=number, default=32, help="tokens to generate")
    generate.add_argument("--batch_size", type=number, default=1, help="prompts per batch")
    generate.add_argument(
        "--peer", choices=["torch"], help="compare with the same models in transformers"
    )


def _add_reading(reading: Parser) -> None:
    reading.add_argument(
        "--data_dir", required=True, help="TFDS data directory; the data set needs a train split"
    )
    reading.add_argument("--tfds_name", help="name of the data set, if the directory has several")
    reading.add_argument(
        "--vocabulary", default="bytes", help="bytes, or the path of a SentencePiece model"
    )
    reading.add_argument("--length", type=number, default=2048, help="tokens per row")
    reading.add_argument("--tokens", type=number, default=2**24, help="tokens per round")


def _add_attention(bench: Parser) -> None:
    helps = {
        "lengths": "tokens per sequence in the two layers",
        "encodings": _BESIDE_NOPE,
        "implementations": "implementations of attention",
        "memory": "lengths at which to measure the memory of a FIRE attention call",
    }
    defaults = {name: ",".join(map(str, ATTENTION[name])) for name in helps}
    for name, help in helps.items():
        add_lists(bench, (name, defaults[name], f"{help} (default: {defaults[name]})"))
    bench.set_defaults(**dict.fromkeys(helps))  # see ATTENTION
    bench.add_argument(
        "--peer", choices=["torch"], help="compare with the same model in another library"
    )
    bench.add_argument(
        "--tpu",
        choices=["v4-8"],
        help="print the compiler's estimates for the kernels on this slice, without a TPU; all "
        "other arguments except --window and --json have no effect and are refused",
    )
    bench.add_argument(
        "--window",
        type=number,
        metavar="W",
        help="compare only one attention call in which queries see W keys with one without window, "
        "with NoPE and FIRE",
    )


def add_lists(verb: Parser, *lists: tuple[str, str, str]) -> None:
    """Add arguments that take comma-separated lists, from their names, defaults and helps."""
    for name, default, help in lists:
        named = name in ("encodings", "implementations")
        kind = names_or_none if named else numbers_or_none
        verb.add_argument(f"--{name}", type=kind, default=default, metavar="A,B", help=help)
