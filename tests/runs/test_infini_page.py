"""The commands of docs/infini_attention.md, on tiny models."""

import json
import re
import shlex
from pathlib import Path

import pytest
from sample_run import command_on_blocks, write_token_blocks

import fire_lm
from fire_lm.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "infini_attention.md").read_text()
SMALL = {"TRAIN_STEPS": 3, "TRAIN_LENGTH": 64, "InfiniAttention.segment": 8}


def commands(tmp_path: Path, blocks: Path) -> list[list[str]]:
    """Return the page's commands with paths in `tmp_path`, for a tiny model on `blocks`."""
    found = []
    for block in re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            verb, *flags = shlex.split(line, comments=True)[1:]
            # tests/preflight/test_preflight_infini.py, and a grid, which would train for minutes.
            if verb in ("preflight", "-m"):
                continue
            flags = [re.sub(r"(^|=)runs/", rf"\1{tmp_path}/runs/", flag) for flag in flags]
            if verb == "pretrain" and "--dry_run" not in flags:
                own = [f for f in flags if not re.match(r"--gin\.(DATA_DIR|TRAIN_LENGTH)=", f)]
                small = [f"--gin.{name}={value}" for name, value in SMALL.items()]
                flags = command_on_blocks(blocks, "", *small)[1:] + own
                flags.remove("--workdir=")
                flags = [f for i, f in enumerate(flags) if f not in flags[:i]]
            elif verb == "sweep":
                flags = [flags[0], "--gin.EVAL_LENGTHS=512", "--gin.length_sweep.tokens=16384"]
            elif verb == "generate":
                flags = [*flags[:-1], "--new_tokens=12"]
            found.append([verb, *flags])
    return found


@pytest.mark.ci
def test_the_commands_of_the_page(tmp_path, capsys, monkeypatch):
    """Also: a run that continues another one keeps its encoding, and export is refused."""
    monkeypatch.chdir(ROOT)
    blocks, runs = write_token_blocks(tmp_path), tmp_path / "runs"
    assert main(command_on_blocks(blocks, runs / "fire", "--gin.TRAIN_STEPS=3")) == 0
    for arguments in commands(tmp_path, blocks):
        assert main(arguments) == 0, arguments
    run = fire_lm.open_run(str(runs / "infini"))
    assert run.encoding == "fire-mixer-InfiniAttention-segment-8"
    (row,) = run.rows().losses
    assert row.length == 512 and row.nll < 10  # 64 segments
    lines = [json.loads(x) for x in (runs / "infini/metrics.jsonl").read_text().splitlines()]
    assert lines[0]["gate_0/layer_0"] == 0.5 != lines[-1]["gate_0/layer_0"]
    assert lines[-1]["memory_norm/layer_0"] > 0 and 0 < lines[-1]["memory_share/layer_0"] < 1
    assert "memory_share" in next((runs / "infini/report").glob("*.md")).read_text()
    continued = json.loads((runs / "fire_infini/metrics.jsonl").read_text().splitlines()[0])
    source = json.loads((runs / "fire/metrics.jsonl").read_text().splitlines()[-1])
    assert continued["gate_1/layer_0"] == pytest.approx(0.0474, abs=1e-3)
    assert abs(continued["L/layer_0"] - source["L/layer_0"]) < 0.2 != source["L/layer_0"] - 16
    capsys.readouterr()
    assert main(["export", str(runs / "infini"), f"--output={tmp_path / 'hf'}"]) == 2
    assert "layers with InfiniAttention cannot be exported" in capsys.readouterr().err
