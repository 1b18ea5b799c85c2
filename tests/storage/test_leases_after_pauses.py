"""Leases in a bucket when a holder, or a process that waits, was paused for longer than they last.

The clocks of a test jump, as they do for a process that continues after its machine was suspended.
"""

import json

import pytest
from bucket import Bucket

from fire_lm.errors import UserError
from fire_lm.storage import LeaseLost, lease
from fire_lm.sweeps import claims
from fire_lm.training.lock import is_being_written, only_writer


class Clocks:
    """Clocks of the lease module, which `pause` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self._ahead, time = 0.0, lease.time
        monkeypatch.setattr(lease, "_clocks", lambda: (time.monotonic() + self._ahead,))

        class Module:
            monotonic = staticmethod(lambda: time.monotonic() + self._ahead)

            def __getattr__(self, name: str) -> object:
                return getattr(time, name)

        monkeypatch.setattr(lease, "time", Module())

    def pause(self, seconds: float) -> None:
        self._ahead += seconds


def taken_over(bucket: Bucket, name: str) -> None:
    """Put another holder's lease in the place of one that has expired."""
    facts = {"id": "theirs", "process": 1, "host": "elsewhere", "machine": "other", "signed": 0.0}
    bucket.put(name, json.dumps(facts).encode())


def test_a_run_that_was_paused_checks_its_lease_before_its_next_step(bucket: Bucket, monkeypatch):
    clocks = Clocks(monkeypatch)
    with only_writer(bucket.url("run")) as still_ours:
        before = len(bucket.log.requests)
        still_ours.check()
        assert len(bucket.log.requests) == before, "a step makes no request"
        clocks.pause(300.0)
        still_ours.check()
        assert len(bucket.log.requests) > before, "nobody has taken over"
        taken_over(bucket, "run/.lock")
        still_ours.check()
        clocks.pause(300.0)
        for _ in range(2):
            with pytest.raises(LeaseLost, match=r"taken over: stopped\n.* held by process 1 on"):
                still_ours.check()
    assert "run/.lock" in bucket.objects, "the other's lease is kept"


def test_claimed_work_that_was_taken_over_is_left_to_the_other(bucket: Bucket, monkeypatch, capsys):
    clocks = Clocks(monkeypatch)
    for by in (claims.claimed, claims.claimed_by_job):
        written: list[int] = []
        with by(bucket.url("run"), "100") as still_ours:
            assert still_ours is not None

            def work() -> None:
                still_ours()  # noqa: B023
                written.append(1)  # noqa: B023

            assert claims.kept(work)
            taken_over(bucket, "run/.sweep/100")
            clocks.pause(300.0)
            assert not claims.kept(work) and written == [1]
        assert "this process was paused, and the other one continues" in capsys.readouterr().out
        bucket.delete("run/.sweep/100")


def test_a_holder_that_was_paused_with_those_who_wait_keeps_its_lease(bucket: Bucket, monkeypatch):
    """The waiting process may continue before the holder has signed again."""
    clocks, other = Clocks(monkeypatch), lease.Lease(bucket.url("run/.lock"))
    taken_over(bucket, "run/.lock")
    assert other.take()
    clocks.pause(3600.0)
    assert other.take(), "an hour of a pause is not an hour without a signature"
    looks = 0
    while other.take():
        clocks.pause(20.0)
        looks += 1
    assert looks == 2, "a holder that has died loses its lease"
    other.release()


def test_a_run_is_being_written_until_its_writer_has_died(bucket: Bucket, monkeypatch):
    """The lock of a killed process stays, and `--follow` must not wait for it."""
    clocks, url, looks = Clocks(monkeypatch), bucket.url("run"), 0
    assert not is_being_written(url)
    taken_over(bucket, "run/.lock")
    while is_being_written(url):
        clocks.pause(20.0)
        looks += 1
    assert looks in (3, 4), "about a minute"


def test_a_lock_on_a_disk_needs_no_check(tmp_path):
    with only_writer(str(tmp_path)) as still_ours:
        still_ours()
        still_ours.check()
        with pytest.raises(UserError), only_writer(str(tmp_path)):
            pass
