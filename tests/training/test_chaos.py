"""A run of two processes in a bucket under random faults ends as if nothing had happened.

FIRE_LM_CHAOS_SECONDS sets for how long rounds are started (1800), and FIRE_LM_CHAOS_SEED the seed
of the first round (0). A round that fails prints its seed and its schedule.
"""

import os
import re
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from bucket import Bucket
from chaos import BUCKET, PROCESS, SILENCE, Hosts, disturb, pause, schedule
from etils import epath
from sample_run import assert_same_state, command_on_blocks, logged
from started_together import finish, start_together

from fire_lm.checkpoints import available_steps
from fire_lm.checkpoints.manifest import damage
from fire_lm.training.goodput import account, starts

SECONDS = float(os.environ.get("FIRE_LM_CHAOS_SECONDS", "1800"))
FIRST_SEED = int(os.environ.get("FIRE_LM_CHAOS_SEED", "0"))
STEPS, SAVE_EVERY = 120, 20
ROUND_SECONDS = 1800.0  # far more than a round takes, even beside other work


def arguments(blocks: Path, workdir: Path | str) -> list[str]:
    """Return the command of a run whose two processes each save a part of every array."""
    bindings = {
        "TRAIN_STEPS": STEPS,
        "TRAIN_LENGTH": 16,
        "Checkpointing.save_every": SAVE_EVERY,
        "Checkpointing.keep_last": STEPS // SAVE_EVERY,
        "Watchdog.silence_seconds": SILENCE,
        "MeshShape.data": 1,
        "MeshShape.fsdp": 2,
    }
    return command_on_blocks(blocks, workdir, *(f"--gin.{n}={v}" for n, v in bindings.items()))


def copied(bucket: Bucket, folder: Path) -> Path:
    for name, content in bucket.objects.items():
        if name.startswith("run/") and not name.endswith("/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return folder / "run"


def saved_at_sigterm(hosts: Hosts) -> set[int]:
    """Return the steps at which the hosts say that SIGTERM made the run save."""
    said = "".join(log.read_text() for log in hosts.logs)
    return {int(step) for step in re.findall(r"by SIGTERM after step (\d+), which is saved", said)}


def check_same(found: Path, expected: Path, more: Collection[int] = ()) -> None:
    """Check that metrics, losses, and every array of every checkpoint that is left are equal.

    `more` are the steps of checkpoints that SIGTERM added, which must be intact.
    """
    assert [row["step"] for row in logged(found)] == list(range(1, STEPS + 1))
    assert logged(found) == logged(expected)
    kept, there = available_steps(found), available_steps(expected)
    assert kept[-1] == STEPS and set(kept) <= {*there, *more}, kept
    for step in kept:
        assert not damage(epath.Path(found) / "checkpoints" / str(step))
    for step in set(kept) & set(there):
        assert_same_state(found, expected, step)


def play(seed: int, blocks: Path, expected: Path, folder: Path) -> None:
    """Train once under the faults of a seed, and compare the result with the undisturbed run."""
    events = schedule(seed)
    print(f"seed {seed}:", *events, sep="\n  ", flush=True)
    began = time.monotonic()
    with Bucket() as bucket:
        hosts = Hosts(arguments(blocks, bucket.url("run")), bucket, folder)
        try:
            struck = disturb(events, hosts, bucket)
            pause(ROUND_SECONDS, hosts)
            told = f"seed {seed}, exit codes {hosts.codes()}\n{hosts.output()}"
        finally:
            hosts.end()
        assert hosts.codes() == [0, 0], told
        assert not bucket.unknown
        found = copied(bucket, folder)
    check_same(found, expected, saved_at_sigterm(hosts))
    times = account(str(found))
    seconds = time.monotonic() - began
    print(f"seed {seed}: {struck} faults, {len(starts(str(found)))} starts, {seconds:.0f} s, of "
          f"which {times['repeated steps']:.0f} s of steps were repeated")  # fmt: skip


@pytest.mark.slow
def test_random_faults_change_nothing(blocks, tmp_path):
    expected = tmp_path / "expected"
    undisturbed = start_together(arguments(blocks, expected), 2)
    told = "\n".join(finish(undisturbed, ROUND_SECONDS))
    assert [process.returncode for process in undisturbed] == [0, 0], told
    end, seed = time.monotonic() + SECONDS, FIRST_SEED
    while time.monotonic() < end:
        (tmp_path / str(seed)).mkdir()
        play(seed, blocks, expected, tmp_path / str(seed))
        seed += 1
    assert seed > FIRST_SEED


def test_a_seed_is_a_schedule_and_seeds_cover_all_faults():
    assert schedule(3) == schedule(3) != schedule(4)
    kinds = {event.kind for seed in range(30) for event in schedule(seed)}
    assert kinds == {*PROCESS, *BUCKET}


def test_a_run_that_differs_is_noticed(tmp_path, monkeypatch):
    """The comparison itself: a step that is missing, another loss, an unannounced checkpoint."""
    rows = [f'{{"step": {step}, "loss": 1.5}}\n' for step in range(1, STEPS + 1)]
    for name, lines in (("whole", rows), ("short", rows[:-1]), ("other", [*rows[:-1], rows[-1].replace("1.5", "1.25")])):  # fmt: skip  # noqa: E501
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
    for name in ("short", "other"):
        with pytest.raises(AssertionError):
            check_same(tmp_path / name, tmp_path / "whole")
    more = {"whole": [STEPS], "extra": [90, STEPS]}
    (tmp_path / "whole").rename(tmp_path / "extra")
    (tmp_path / "whole").symlink_to(tmp_path / "extra")
    this = sys.modules[__name__]
    monkeypatch.setattr(this, "available_steps", lambda workdir: more[workdir.name])
    monkeypatch.setattr(this, "damage", lambda folder: "")
    monkeypatch.setattr(this, "assert_same_state", lambda run, other, step: None)
    check_same(tmp_path / "extra", tmp_path / "whole", {90})
    with pytest.raises(AssertionError):
        check_same(tmp_path / "extra", tmp_path / "whole")
