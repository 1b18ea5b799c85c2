"""Runs whose rows change their length, killed around the changes, end like runs that were not."""

import random
from pathlib import Path

import pytest
from sample_run import assert_same_state, command, command_on_blocks, logged
from test_resume import assert_each_step_once, finish, kill_at, start, steps_logged


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
def test_killed_before_and_after_a_change_and_still_bit_equal(blocks, tmp_path):
    arguments = without_workdir(command_on_blocks(blocks, "", position="alibi_pi"))
    schedule = "--gin.TRAIN_LENGTHS=((0, 32), (8, 64), (0.8, (32, 64)))"
    killed_and_whole(arguments, [schedule], [7, 10], tmp_path, steps=20)
    lengths = {}
    for row in logged(tmp_path / "whole"):
        lengths[row["step"]] = row["tokens"]
    assert {b - a for a, b in zip([0, *lengths.values()], lengths.values(), strict=False)} == {256}


@pytest.mark.slow
@pytest.mark.parametrize("data", ["blocks", "seqio"])
def test_killed_ten_times_around_changes_and_still_bit_equal(data, blocks, data_dir, tmp_path):
    made = command_on_blocks(blocks, "") if data == "blocks" else command(data_dir, "")
    changes = [20, 40, 60, 80, 100]
    entries = [32, 64, (32, 64), 128, 32, 64]
    schedule = tuple(zip([0, *changes], entries, strict=True))
    draw = random.Random(data)
    kills = [at for n in changes for at in (n - draw.randrange(3), n + draw.randrange(1, 5))]
    flags = [f"--gin.TRAIN_LENGTHS={schedule}", "--gin.CONSTRUCTION=packed"]
    flags += ["--gin.build_decoder.dropout=0.1"]
    killed_and_whole(without_workdir(made), flags, kills, tmp_path, steps=120)
