"""Runs whose rows change their length, killed around the changes, end like runs that were not."""

import random
from pathlib import Path

import numpy as np
import pytest
from sample_run import assert_same_state, command, command_on_blocks, logged
from test_resume import assert_each_step_once, finish, kill_at, start, steps_logged

from fire_lm.cli import main


def killed_and_whole(
    arguments: list[str], flags: list[str], kills: list[int], folder: Path, steps: int
) -> None:
    """Kill a run as soon as it has logged each of `kills`, and compare it with a whole run.

    Checkpoints are saved every third step, so that a run resumes on either side of a change.
    """
    more = [f"--gin.TRAIN_STEPS={steps}", "--gin.Checkpointing.save_every=3", *flags]
    killed, whole = folder / "killed", folder / "whole"
    finish(start([*arguments, f"--workdir={whole}", *more]))
    for kill in kills:
        at = max([kill, *(step + 1 for step in steps_logged(killed))])
        kill_at([*arguments, f"--workdir={killed}", *more], killed, at, pause=0.0)
        assert_each_step_once(killed)
    finish(start([*arguments, f"--workdir={killed}", *more]))
    assert [row["step"] for row in logged(whole)] == list(range(1, steps + 1))
    assert logged(killed) == logged(whole)
    assert_same_state(killed, whole, steps)


def without_workdir(arguments: list[str]) -> list[str]:
    return [word for word in arguments if not word.startswith("--workdir=")]


@pytest.mark.ci
def test_killed_before_and_at_a_change_and_still_bit_equal(blocks, tmp_path):
    arguments = without_workdir(command_on_blocks(blocks, "", position="alibi_pi"))
    schedule = "--gin.TRAIN_LENGTHS=((0, 32), (6, 64), (0.8, (32, 64)))"
    killed_and_whole(arguments, [schedule], [5, 7], tmp_path, steps=20)
    tokens = [0, *(row["tokens"] for row in logged(tmp_path / "whole"))]
    assert set(np.diff(tokens)) == {256}


@pytest.mark.ci
def test_the_first_step_after_a_change_may_be_the_first_of_a_start(blocks, tmp_path):
    """Here, the checkpoint lies exactly at the change, without luck and in this process."""
    flags = ["--gin.TRAIN_LENGTHS=((0, 32), (3, 64))", "--gin.AdamW.final_fraction=1.0"]
    for folder, all_steps in (("whole", [4]), ("resumed", [3, 4])):
        for steps in all_steps:
            more = [*flags, f"--gin.TRAIN_STEPS={steps}"]
            command = command_on_blocks(blocks, tmp_path / folder, *more, position="alibi_pi")
            assert main(command) == 0
    assert logged(tmp_path / "resumed") == logged(tmp_path / "whole")
    assert_same_state(tmp_path / "resumed", tmp_path / "whole", 4)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["blocks", "seqio"])
def test_killed_ten_times_around_changes_and_still_bit_equal(data, blocks, data_dir, tmp_path):
    made = command_on_blocks(blocks, "") if data == "blocks" else command(data_dir, "")
    changes = [21, 42, 60, 81, 99]
    entries = [32, 64, (32, 64), 128, 32, 64]
    schedule = tuple(zip([0, *changes], entries, strict=True))
    draw = random.Random(data)
    kills = [at for n in changes for at in (n - draw.randrange(3), n + 1)]
    flags = [f"--gin.TRAIN_LENGTHS={schedule}", "--gin.CONSTRUCTION=packed"]
    flags += ["--gin.build_decoder.dropout=0.1"]
    killed_and_whole(without_workdir(made), flags, kills, tmp_path, steps=120)
