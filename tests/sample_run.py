"""A run small enough for a test: sixty short documents, one layer, and the command to train it."""

from __future__ import annotations

import fcntl
import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fire_lm.checkpoints import Checkpointing
from fire_lm.cli import main
from fire_lm.data import TextData
from fire_lm.data.corpora.embedded import write_corpus
from fire_lm.models import build_decoder, size_tiny
from fire_lm.positions.alibi import ALiBi
from fire_lm.training import AdamW, Pretraining

STEPS = 12
SAVE_EVERY = 5


def write_text(folder: Path, documents: int = 60) -> Path:
    """Write a data set for `DATA_DIR`: sentences of a few words that are easy to learn."""
    words = ["fire ", "rope ", "alibi ", "and ", "nope ", "are ", "positions, ", "so they say. "]
    draw = random.Random(0)
    texts = [
        (f"text/{number}", "".join(draw.choices(words, k=draw.randrange(60, 300))).encode())
        for number in range(documents)
    ]
    write_corpus(str(folder), texts, lambda message: None)
    return folder


def command(data_dir: Path, workdir: Path | str, *more: str, position: str = "fire") -> list[str]:
    """Return the arguments of `fire-lm pretrain`; bindings in `more` replace these."""
    bindings: dict[str, Any] = {
        "DATA_DIR": data_dir,
        "TRAIN_STEPS": STEPS,
        "BATCH_SIZE": 8,
        "TRAIN_LENGTH": 32,
        "size_tiny.num_layers": 1,
        "size_tiny.hidden_size": 32,
        "size_tiny.num_heads": 2,
        "size_tiny.head_dim": 16,
        "size_tiny.mlp_size": 64,
        "AdamW.warmup_steps": 2,
        "AdamW.learning_rate": 0.01,
        "TextData.shuffle_buffer": 50,
        "Checkpointing.save_every": SAVE_EVERY,
        "pretrain.log_every": 1,
    }
    given = [flag.removeprefix("--gin.") for flag in more if flag.startswith("--gin.")]
    bindings |= dict(one.split("=", 1) for one in given)
    return [
        "pretrain",
        "--gin_file=configs/runs/quickstart.gin",
        f"--gin_file=configs/positions/{position}.gin",
        f"--workdir={workdir}",
        *(f"--gin.{name}={value}" for name, value in bindings.items()),
        *(flag for flag in more if not flag.startswith("--gin.")),
    ]


def write_token_blocks(folder: Path) -> Path:
    """Write the text of `write_text` as blocks, which a process reads without TensorFlow."""
    from fire_lm.data.blocks.writer import write_blocks

    write_blocks(TextData(str(write_text(folder / "text"))), str(folder / "blocks"), parts=3)
    return folder / "blocks"


def command_on_blocks(
    blocks: Path, workdir: Path | str, *more: str, position: str = "fire"
) -> list[str]:
    """Return the arguments of `command` for a run on blocks."""
    own = command(blocks, workdir, *more, position=position)
    own = [flag for flag in own if "shuffle_buffer" not in flag]
    return [*own, "--gin_file=configs/data/blocks.gin"]


def tiny_run(**changed: Any) -> Pretraining:
    """Return settings of the smallest model, for tests that need settings but train nothing."""
    size = size_tiny(num_layers=1, hidden_size=16, num_heads=1, head_dim=16, mlp_size=16)
    settings: dict[str, Any] = {
        "model": build_decoder(size, ALiBi, 259, train_length=16, dtype="float32"),
        "data": TextData("nowhere"),
        "optimizer": AdamW(warmup_steps=1),
        "checkpoints": Checkpointing(),
        "train_steps": 8,
        "batch_size": 8,
        "train_length": 16,
        "seed": 0,
    }
    return Pretraining(**(settings | changed))


def logged(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without times, which differ between repetitions."""
    timed = {"tokens_per_second", "goodput", "data_wait"}
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in timed} for row in rows]


def trained_once(folder: Path) -> Path:
    """Write a text, its token blocks and a run on the text, unless another process of tests has."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            write_token_blocks(folder)
            assert main(command(folder / "text", folder / "finished")) == 0
            (folder / "done").touch()
    return folder


def saved_state(workdir: Path, step: int) -> dict[str, Any]:
    """Return every array of a checkpoint by its path, as numpy."""
    import orbax.checkpoint as ocp

    reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    folder = workdir / "checkpoints" / str(step) / "state"
    like = reader.metadata(folder).item_metadata.tree
    numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
    tree = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=numpy))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def assert_same_arrays(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that the states of two checkpoints are equal to the bit."""
    assert found.keys() == expected.keys()
    assert any(name.startswith("opt_state/") for name in expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_same_state(run: Path, other: Path, step: int = STEPS) -> None:
    assert_same_arrays(saved_state(run, step), saved_state(other, step))
