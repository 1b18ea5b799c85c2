"""fire_lm.training.goodput: how a run spent its time, over all its starts."""

import json
import math
import time
from types import SimpleNamespace

import pytest

from fire_lm.errors import RunFailed, UserError
from fire_lm.training.goodput import (
    COMPILE,
    DATA,
    DEVICES,
    LOST,
    SAVE,
    START,
    STOPPED,
    Goodput,
    account,
    machine,
    starts,
    table,
)


def write(folder, number, began, resumed_from, seconds, at_save):
    folder.mkdir(exist_ok=True)
    facts = {"began": began, "resumed_from": resumed_from, "seconds": seconds, "at_save": at_save}
    (folder / f"{number:05d}.json").write_text(json.dumps(facts))


def two_starts(workdir, second_began=150.0):
    """Write records of two starts, of which the second resumed from checkpoint 20 of the first.

    The first was killed after 10 s of further steps.
    """
    folder = workdir / "goodput"
    kept = {START: 10.0, COMPILE: 5.0, DEVICES: 40.0, DATA: 2.0, SAVE: 1.0}
    lost = kept | {DEVICES: 49.0, DATA: 3.0}
    write(folder, 0, 1000.0, 0, lost, {"10": kept | {DEVICES: 20.0}, "20": kept})
    second = {START: 8.0, COMPILE: 4.0, DEVICES: 30.0, SAVE: 1.0}
    write(folder, 1, 1000.0 + second_began, 20, second, {"30": second})


def test_steps_done_again_are_lost_and_gaps_are_stopped(tmp_path):
    two_starts(tmp_path)
    assert account(str(tmp_path)) == {
        DEVICES: 70.0, DATA: 2.0, SAVE: 2.0, START: 18.0, COMPILE: 9.0, LOST: 10.0,
        STOPPED: 150.0 - 68.0,
    }  # fmt: skip
    assert sum(account(str(tmp_path)).values()) == 150.0 + 43.0, "from first to last second"
    assert "repeated steps" in table(str(tmp_path)) and "3:13 in total" in table(str(tmp_path))


def test_the_wait_for_the_last_save_repeats_no_step(tmp_path):
    """A checkpoint is complete some time after its save began, when its time is recorded."""
    kept = {START: 10.0, COMPILE: 5.0, DEVICES: 40.0, DATA: 2.0, SAVE: 1.0}
    write(tmp_path / "goodput", 0, 1000.0, 0, kept | {SAVE: 61.0}, {"20": kept})
    write(tmp_path / "goodput", 1, 1200.0, 20, {START: 8.0, DEVICES: 30.0}, {})
    total = account(str(tmp_path))
    assert total[SAVE] == 61.0 and total[LOST] == 0.0


def test_a_checkpoint_that_was_damaged_loses_what_came_after_the_one_before(tmp_path):
    """The third start resumes from step 10, so that the second one's steps are lost as well."""
    two_starts(tmp_path)
    write(tmp_path / "goodput", 2, 1200.0, 10, {START: 5.0, DEVICES: 60.0}, {})
    total = account(str(tmp_path))
    assert total[DEVICES] == 20.0 + 60.0
    assert total[LOST] == (49 - 20) + 3 + 1 - 2 - 1 + 30 + 1


def test_what_no_start_has_written_is_left_out(tmp_path):
    """The folder has people's notes and records with a flipped bit."""
    two_starts(tmp_path)
    expected = account(str(tmp_path))
    folder = tmp_path / "goodput"
    whole = json.loads((folder / "00001.json").read_text())
    (folder / "notes.json").write_text(json.dumps(whole))
    (folder / "²²²²².json").write_text(json.dumps(whole))
    broken = [
        {"a": 1},
        whole | {"began": "noon"},
        whole | {"resumed_from": None},
        whole | {"at_save": {"20": 5}},
        whole | {"seconds": {"savjng": 1.0}},
        whole | {"seconds": {DATA: math.nan}},
        {name: value for name, value in whole.items() if name != "seconds"},
    ]
    for number, facts in enumerate(broken, 2):
        (folder / f"{number:05d}.json").write_text(json.dumps(facts))
    assert account(str(tmp_path)) == expected
    goodput = Goodput(str(tmp_path), quiet=False)
    goodput.resumed(30)
    goodput.close()
    assert (folder / "00009.json").exists(), "no record is written over"


@pytest.mark.parametrize("jump", [86_400.0, -3_750.0])
def test_a_clock_that_jumps_between_starts_is_time_stopped(tmp_path, jump):
    """The times of the starts stay as they were, and no time is negative."""
    two_starts(tmp_path)
    before = account(str(tmp_path))
    two_starts(tmp_path, second_began=150.0 + jump)
    assert account(str(tmp_path)) == before | {STOPPED: max(0.0, before[STOPPED] + jump)}


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_during_a_start_changes_nothing(tmp_path, monkeypatch, jump):
    now, wall = [time.monotonic()], [1_000_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: wall[0])
    goodput = Goodput(str(tmp_path), quiet=False)
    goodput.resumed(0)
    for stage in (COMPILE, DEVICES, SAVE):
        goodput.enter(stage)
        now[0] += 10.0
        wall[0] += jump
    goodput.saved(1)
    goodput.close()
    assert account(str(tmp_path)) == {
        DEVICES: 10.0, DATA: 0.0, SAVE: 10.0, START: 0.0, COMPILE: 10.0, LOST: 0.0, STOPPED: 0.0,
    }  # fmt: skip


def test_a_kill_while_it_compiles_leaves_the_time_before(tmp_path, monkeypatch):
    """The same holds for a kill during start-up, once it is known that there is work to do."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    goodput = Goodput(str(tmp_path), quiet=False)
    monkeypatch.setattr(goodput, "_period", math.inf)  # as in a bucket
    now[0] += 3.0
    assert account(str(tmp_path))[START] == 0
    goodput.resumed(0)
    assert account(str(tmp_path))[START] == pytest.approx(3)
    now[0] += 40.0
    goodput.enter(COMPILE)
    assert account(str(tmp_path))[START] == pytest.approx(43)
    now[0] += 50.0
    goodput.enter(START)
    assert account(str(tmp_path))[COMPILE] == pytest.approx(50)


def test_a_refused_start_is_no_part_of_the_time(tmp_path):
    """One that failed before its first step does not count; one that failed later does."""
    for error, counted in (
        (UserError("no"), False),
        (RunFailed("no"), False),
        (RunFailed(""), True),
    ):
        before = len(starts(str(tmp_path)))
        with pytest.raises(type(error)), Goodput(str(tmp_path), quiet=False) as goodput:
            goodput.resumed(0)
            goodput.begun = counted
            raise error
        assert (tmp_path / "goodput").exists() == counted
        assert len(starts(str(tmp_path))) == before + counted


def test_a_start_that_finds_nothing_to_do_leaves_no_record(tmp_path):
    Goodput(str(tmp_path), quiet=False).close()
    assert not (tmp_path / "goodput").exists()


def test_starts_that_waited_for_each_other_have_records_of_their_own(tmp_path):
    """Two can be created before either has the run directory."""
    earlier, later = (Goodput(str(tmp_path), quiet=False) for _ in range(2))
    for goodput in (earlier, later):
        goodput.resumed(0)
        goodput.close()
    assert [path.name for path in sorted((tmp_path / "goodput").iterdir())] == [
        *("00000.json", "00001.json")
    ]


def test_the_fractions_in_the_metrics(tmp_path, monkeypatch):
    two_starts(tmp_path)
    now = [time.monotonic() + 100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 1300.0)
    goodput = Goodput(str(tmp_path), quiet=False)
    goodput.resumed(30)
    goodput.enter(DEVICES)
    now[0] += 30.0
    goodput.enter(DATA)
    now[0] += 10.0
    goodput.enter(DEVICES)
    told = goodput.fractions()
    assert told["data_wait"] == pytest.approx(10 / 40)
    assert told["goodput"] == pytest.approx((40 + 30 + 30) / (300 + 40))
    now[0] += 20.0
    told = goodput.fractions()
    assert told["data_wait"] == 0
    assert told["goodput"] == pytest.approx((40 + 30 + 50) / (300 + 60))
    goodput.close()
    assert sum(account(str(tmp_path)).values()) == pytest.approx(360)


def test_another_process_than_the_first_writes_nothing(tmp_path):
    goodput = Goodput(str(tmp_path), quiet=True)
    goodput.enter(DEVICES)
    goodput.close()
    assert not (tmp_path / "goodput").exists() and set(goodput.fractions()) == {
        "goodput",
        "data_wait",
    }


@pytest.mark.parametrize(
    ("platform_name", "kind", "devices"), [("cpu", "riscv CPU core", 3), ("tpu", "TPU v4", 128)]
)
def test_a_start_says_what_it_runs_on(platform_name, kind, devices, monkeypatch):
    """The record has the chips, or the cores of a process, which JAX shows as one device."""
    device = SimpleNamespace(platform=platform_name, device_kind="TPU v4")
    monkeypatch.setattr("jax.devices", lambda: [device])
    monkeypatch.setattr("jax.device_count", lambda: 128)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "riscv")
    found = machine()
    assert (found["kind"], found["devices"]) == (kind, devices)
