"""Every file of scores that tiny runs have, to compare two versions of the code to the byte.

    python tests/frozen_scores.py RUNS OUT

trains four tiny runs in RUNS unless they exist, copies them to OUT, and scores the copies: a
length sweep with another variant, text and protocol, losses by position, the accuracy on a
synthetic task in both layouts, generated and ranked answers to a task with the loss of its targets,
and the accuracy of an encoder on hidden tokens. With one version of the code for RUNS and OUT and
another for a second OUT,

    diff -r -x checkpoints -x '*.png' -x .sweep OUT OTHER

shows what changed. Everything runs on the CPU, whose results repeat to the bit.
"""

import json
import shutil
import sys
from pathlib import Path

from sample_run import command, write_text

from fire_lm.cli import main

SYNTHETIC = [
    *("pretrain", "--gin_file=configs/synthetic/reverse_string.gin"),
    *("--gin_file=configs/resampling/even.gin", "--gin_file=configs/positions/fire.gin"),
    *("--gin.RandomizedPositions.max_length=64", "--gin.TRAIN_LENGTH=64"),
    *("--gin.Synthetic.max_length=7", "--gin.TRAIN_STEPS=6", "--gin.BATCH_SIZE=4"),
    *("--gin.size_tiny.num_layers=1", "--gin.size_tiny.hidden_size=16"),
    *("--gin.size_tiny.num_heads=2", "--gin.Checkpointing.save_every=3"),
    *("--gin.Checkpointing.keep_every=1", "--gin.AdamW.warmup_steps=1"),
]


def train(runs: Path) -> None:
    """Train the runs that do not exist yet."""
    text = runs / "data"
    if not text.exists():
        write_text(text)
        pairs = [
            {"id": f"q{n}", "inputs": f"{'abcdef'[n % 6]} x{n % 4 + 1}:" * (n % 3 + 1),
             "targets": "ab"[n % 2] * (n % 4 + 1)} for n in range(12)
        ]  # fmt: skip
        (runs / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    commands = {
        "text": command(text, runs / "text", "--gin.Checkpointing.keep_every=1", position="rope"),
        "slots": [*SYNTHETIC, f"--workdir={runs / 'slots'}"],
        "generated": [
            *SYNTHETIC, f"--workdir={runs / 'generated'}", "--gin.Synthetic.layout=autoregressive"
        ],
        "masked": command(
            *(text, runs / "masked", "--gin_file=configs/encoder.gin"),
            "--gin_file=configs/data/masked.gin", position="rope",
        ),
    }  # fmt: skip
    for name, arguments in commands.items():
        if not (runs / name).exists():
            done(arguments)


def score(runs: Path, out: Path) -> None:
    """Copy the runs and score the copies, partly and then completely, as a resumed command does."""
    shutil.copytree(runs, out, ignore=lambda _, names: {"data", "pairs.jsonl"} & {*names})
    sweep = ["sweep", f"{out / 'text'}@all", "--gin.length_sweep.tokens=2048"]
    other = "--gin.length_sweep.split=train --gin.length_sweep.protocols=full,sliding"
    done([*sweep, "--gin.EVAL_LENGTHS=32"])
    done([
        *sweep, "--gin.EVAL_LENGTHS=32,48,64", "--also=--gin.RoPE.scaling=@YaRN()",
        f"--also={other} --gin.length_sweep.stride=16 --gin.CONSTRUCTION=packed",
        f"--output={out / 'swept'}",
    ])  # fmt: skip
    accuracy = [str(out / "slots"), str(out / "generated"), f"--output={out / 'measured'}"]
    done(["evaluate", *accuracy, "--sequences=4", "--lengths=2,5"])
    random = "--also=--gin.RandomizedPositions.evaluation=random"
    done(["evaluate", *accuracy, "--sequences=4", "--lengths=2,5,9", random])
    task = [
        *("evaluate", f"{out / 'text'}@5,12", "--gin_file=configs/tasks/pairs.gin"),
        *(f"--gin.PAIRS={runs / 'pairs.jsonl'}", "--gin.TARGET_LENGTH=6"),
        *("--gin.EVAL_LENGTHS=8,16", "--gin.evaluate.batch_size=4", "--gin.evaluate.split=train"),
    ]
    done([*task, "--gin.evaluate.loss=True"])
    ranked = """--also=--gin.evaluate.rank=True --gin.evaluate.choices="('a','bb')" """
    done([*task, "--gin.evaluate.loss=True", "--gin.evaluate.examples=5", ranked])
    measure = "--measure=fire_lm.measures.masked_accuracy.MaskedAccuracy"
    budget = "--gin.MaskedAccuracy.tokens=2048"
    done(["evaluate", str(out / "masked"), measure, budget, "--lengths=16,32"])


def done(arguments: list[str]) -> None:
    if code := main(arguments):
        raise SystemExit(f"exit code {code}: fire-lm {' '.join(arguments)}")


if __name__ == "__main__":
    runs, out = (Path(argument).absolute() for argument in sys.argv[1:])
    runs.mkdir(parents=True, exist_ok=True)
    train(runs)
    score(runs, out)
