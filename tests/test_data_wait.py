"""Training does not wait for its text: the share of time as `metrics.jsonl` tells it.

The real `tiny` model, whose steps take some ten milliseconds here; loose, since other programs may
be at work on the machine.
"""

import json
from pathlib import Path
from statistics import median

import pytest
from sample_run import write_text

from fire_lm import cli
from fire_lm.data import TextData, write_blocks

WARM_UP, STEPS = 20, 70


def data_wait(workdir: Path, data_dir: Path, *more: str) -> float:
    """The median of the lines after the warm-up, of ten steps each."""
    arguments = [
        "pretrain",
        "--gin_file=configs/runs/quickstart.gin",
        "--gin_file=configs/positions/fire.gin",
        *more,
        f"--workdir={workdir}",
        f"--gin.DATA_DIR={data_dir}",
        f"--gin.TRAIN_STEPS={STEPS}",
        "--gin.pretrain.log_every=10",
    ]
    assert cli.main(arguments) == 0
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return median(row["data_wait"] for row in rows if row["step"] > WARM_UP)


@pytest.mark.ci
def test_tiny_hardly_waits_for_text(tmp_path):
    text = write_text(tmp_path / "text")
    write_blocks(TextData(str(text)), str(tmp_path / "blocks"))
    blocks = data_wait(
        tmp_path / "run_blocks", tmp_path / "blocks", "--gin_file=configs/data/blocks.gin"
    )
    assert blocks < 0.1
    on_the_fly = data_wait(tmp_path / "run", text, "--gin.TextData.shuffle_buffer=1000")
    assert on_the_fly < 0.2
    print(f"waited {blocks:.4f} of the time for blocks, {on_the_fly:.4f} on the fly")
