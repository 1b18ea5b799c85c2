"""fire_lm.training.goodput: the time of a run by what it went into, over all its starts."""

import json
import time

import pytest

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
    table,
)


def write(folder, number, began, resumed_from, seconds, at_save):
    folder.mkdir(exist_ok=True)
    facts = {"began": began, "resumed_from": resumed_from, "seconds": seconds, "at_save": at_save}
    (folder / f"{number:05d}.json").write_text(json.dumps(facts))


def two_starts(workdir, second_began=150.0):
    """The first was killed 10 s of steps after its checkpoint 20; the second went on from it."""
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
    assert "steps done again" in table(str(tmp_path)) and "3:13 in all" in table(str(tmp_path))


def test_a_checkpoint_that_was_damaged_loses_what_came_after_the_one_before(tmp_path):
    """The third start goes on from 10, so that the second one's steps are lost as well."""
    two_starts(tmp_path)
    write(tmp_path / "goodput", 2, 1200.0, 10, {START: 5.0, DEVICES: 60.0}, {})
    total = account(str(tmp_path))
    assert total[DEVICES] == 20.0 + 60.0
    assert total[LOST] == (49 - 20) + 3 + 1 - 2 - 1 + 30 + 1


def test_a_clock_set_back_gives_no_negative_time(tmp_path):
    two_starts(tmp_path, second_began=-3600.0)
    total = account(str(tmp_path))
    assert total[STOPPED] == 0 and total[DEVICES] == 70.0


def test_the_fractions_in_the_metrics(tmp_path, monkeypatch):
    two_starts(tmp_path)
    now = [time.monotonic() + 100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 1300.0)
    monkeypatch.setattr("fire_lm.STARTED", now[0])
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
