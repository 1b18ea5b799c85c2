"""fire_lm.storage on a bucket: the server of bucket.py, the real libraries, in this process."""

import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from bucket import Bucket
from bucket_faults import Denied, LostAnswer, Slow, Status

from fire_lm import storage
from fire_lm.cli.preflight import check_place_of
from fire_lm.errors import RunFailed, UserError
from fire_lm.results import tables as result_files
from fire_lm.results.metrics_log import logged_steps
from fire_lm.results.tables import PositionLoss, merge_table, read_table
from fire_lm.results.trackers import MetricsLog
from fire_lm.storage import appended, lease
from fire_lm.storage.appended import Uploaded
from fire_lm.sweeps.claims import claimed
from fire_lm.training.lock import only_writer
from fire_lm.training.spikes import SpikeLog

# --- Existence and listings


def test_one_level_of_a_folder_is_listed(bucket: Bucket):
    for name in ("run/config.gin", "run/checkpoints/5/state/a", "run/checkpoints/5/b", "other"):
        bucket.put(name, b"")
    with bucket.counting() as counted:
        found = storage.children(bucket.url("run"))
    assert sorted(path.name for path in found) == ["checkpoints", "config.gin"]
    lists = counted.find(operation="list")
    assert lists and all("delimiter" in one.query or "maxResults" in one.query for one in lists)
    assert storage.children(bucket.url("nothing")) == []
    assert storage.children(bucket.url("other")) == []  # a file


@pytest.mark.parametrize("fault", [Status(status=403), Status(status=503)])
def test_an_error_is_never_taken_for_absence(bucket: Bucket, fault):
    bucket.put("run/config.gin", b"x")
    bucket.faults = [fault]
    for ask in (storage.children, storage.present, storage.read_bytes):
        with pytest.raises(RunFailed, match="cannot be (read|listed): "):
            ask(bucket.url("run"))


def test_a_bucket_that_does_not_exist_is_refused_within_seconds(bucket: Bucket):
    start = time.monotonic()
    with pytest.raises(UserError, match="--workdir gs://mistyped/run: there is no bucket mistyped"):
        storage.require_bucket("gs://mistyped/run", "--workdir")
    assert time.monotonic() - start < 10
    storage.require_bucket(bucket.url("run"), "--workdir")
    bucket.faults = [Denied(prefix="")]  # a writer need not have permission to look at the bucket
    storage.require_bucket(bucket.url("run"), "--workdir")


def test_a_new_file_never_replaces_another(bucket: Bucket):
    assert storage.create_text(bucket.url("config.gin"), "mine")
    assert not storage.create_text(bucket.url("config.gin"), "theirs")
    assert bucket.objects == {"config.gin": b"mine"}


# --- Growing files


def write_steps(folder: str, first: int, last: int, resume: int = 0) -> None:
    log = MetricsLog(folder, resume)
    for step in range(first, last + 1):
        log.write(step, {"loss": 1.0 / step})
    log.close()


def test_metrics_arrive_and_no_step_waits_for_them(bucket: Bucket):
    log = MetricsLog(bucket.url("run"), 0)
    with bucket.counting() as counted:
        for step in range(1, 101):
            log.write(step, {"loss": 1.0 / step})
    assert counted.count() == 0
    log.close()
    assert [facts["step"] for facts in logged_steps(bucket.url("run"))] == list(range(1, 101))
    assert bucket.objects["run/metrics.jsonl"].count(b"\n") == 100


def test_tensorboard_reads_the_events_in_their_parts(bucket: Bucket, tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(appended, "PART_BYTES", 300)
    monkeypatch.setattr(appended, "WINDOW_SECONDS", 0.001)
    write_steps(bucket.url("run"), 1, 3)
    log = MetricsLog(bucket.url("run"), 2)
    for step in range(3, 40):
        log.write(step, {"loss": 10.0})
        time.sleep(0.01)
    log.close()
    for name, content in bucket.objects.items():
        if "tfevents" in name:
            (tmp_path / Path(name).name).write_bytes(content)
    assert len(list(tmp_path.iterdir())) > 2
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [one.step for one in events.Scalars("loss")] == list(range(1, 40))
    assert [one.value for one in events.Scalars("loss")][2:] == [10.0] * 37


def test_lines_arrive_within_the_window_while_the_run_goes_on(bucket: Bucket, monkeypatch):
    monkeypatch.setattr(appended, "WINDOW_SECONDS", 0.05)
    log = MetricsLog(bucket.url("run"), 0)
    log.write(1, {"loss": 1.0})
    deadline = time.monotonic() + 10
    while not logged_steps(bucket.url("run")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert logged_steps(bucket.url("run")) == [{"step": 1, "loss": 1.0}]  # as after a kill
    log.close()


def test_a_bucket_that_refuses_for_a_while_loses_no_line(bucket: Bucket, monkeypatch, capsys):
    monkeypatch.setattr(appended, "WINDOW_SECONDS", 0.02)
    log = MetricsLog(bucket.url("run"), 0)
    bucket.faults = [Denied(prefix="run", to="writes")]
    for step in range(1, 6):
        log.write(step, {"loss": 1.0})
        time.sleep(0.05)
    bucket.faults = []
    log.write(6, {"loss": 1.0})
    log.close()
    assert [facts["step"] for facts in logged_steps(bucket.url("run"))] == [1, 2, 3, 4, 5, 6]
    assert capsys.readouterr().err.count("metrics.jsonl cannot be written") == 1


def test_what_a_bucket_refuses_to_the_end_is_counted(bucket: Bucket, capsys):
    log = MetricsLog(bucket.url("run"), 0)
    bucket.faults = [Denied(prefix="run", to="writes")]
    log.write(1, {"loss": 1.0})
    log.close()
    assert (
        "bytes could not be uploaded to " in (told := capsys.readouterr().err)
        and "metrics.jsonl and are lost" in told
    )


@pytest.mark.parametrize("lines", ["beyond the resume step", "up to it", "in a part that is full"])
def test_an_earlier_writer_changes_no_line_of_its_successor(bucket, monkeypatch, capsys, lines):
    """The earlier writer was suspended, and its run directory was taken over at step 20."""
    if lines == "in a part that is full":
        monkeypatch.setattr(appended, "PART_BYTES", 500)
    run, reached = bucket.url("run"), 35 if lines == "beyond the resume step" else 20
    earlier, spikes = MetricsLog(run, 0), SpikeLog(run, 0)
    spikes.add({"step": 7, "loss": 9.0})
    for step in range(1, reached + 1):
        earlier.write(step, {"by": "earlier", "loss": 1.0})
    for log in (dict(earlier._logs)["metrics.jsonl"]._file, spikes._log):
        log._upload()
    later, spikes_of_later = MetricsLog(run, 20), SpikeLog(run, 20)
    for first, spiked in ((21, 30), (41, 50)):
        earlier.write(reached + first, {"by": "earlier", "loss": 1.0})
        spikes.add({"step": spiked - 1, "loss": 9.0})
        for log in (dict(earlier._logs)["metrics.jsonl"]._file, spikes._log):
            log._upload()
        for step in range(first, first + 20):
            later.write(step, {"by": "later", "loss": 1.0})
        spikes_of_later.add({"step": spiked, "loss": 9.0})
        for log in (dict(later._logs)["metrics.jsonl"]._file, spikes_of_later._log):
            log._upload()
    later.close()
    spikes_of_later.close()
    earlier.write(reached + 61, {"by": "earlier", "loss": 1.0})
    spikes.add({"step": 61, "loss": 9.0})
    earlier.close()
    spikes.close()
    found = logged_steps(run)
    assert [facts["step"] for facts in found] == list(range(1, 61))
    assert [facts["by"] for facts in found] == ["earlier"] * 20 + ["later"] * 40
    lines_of_spikes = bucket.objects["run/spikes.jsonl"].decode().splitlines()
    assert [json.loads(line)["step"] for line in lines_of_spikes] == [7, 30, 50]
    told = re.findall(
        r"(\w+).jsonl has been changed by another process: no more lines", capsys.readouterr().err
    )
    assert told == ["metrics_1" if "full" in lines else "metrics", "spikes"]


def test_lines_that_arrived_without_an_answer_are_known_again(bucket: Bucket, capsys):
    log = storage.append_to(bucket.url("run/metrics.jsonl"))
    written = "^POST /upload.*metrics"
    bucket.faults = [LostAnswer(match=written, times=1), Status(status=503, match=written)]
    assert isinstance(log, Uploaded)
    log.append(b"1\n")
    log._upload()
    assert bucket.objects["run/metrics.jsonl"] == b"1\n" and log._refused
    bucket.faults = []
    log.append(b"2\n")
    log.close()
    assert bucket.objects["run/metrics.jsonl"] == b"1\n2\n"


def test_no_step_waits_for_the_upload_of_a_spike(bucket: Bucket):
    log = SpikeLog(bucket.url("run"), 0)
    log.add({"step": 1, "loss": 9.0})
    with bucket.counting() as counted:
        log.add({"step": 2, "loss": 9.0})
    assert counted.count() == 0
    log.close()
    assert bucket.objects["run/spikes.jsonl"].count(b"\n") == 2


# --- One holder at a time


def test_the_second_writer_of_a_run_directory_is_refused(bucket: Bucket, monkeypatch):
    monkeypatch.setattr(lease, "SIGN_SECONDS", 0.05)
    monkeypatch.setattr("fire_lm.training.lock._LOOK_SECONDS", 0.05)
    with only_writer(bucket.url("run")) as still_ours:
        still_ours()
        refused = f"is in use by process {os.getpid()} on {socket.gethostname()}, last seen"
        with pytest.raises(UserError, match=refused):
            with only_writer(bucket.url("run")):
                raise AssertionError
        still_ours()
    assert bucket.objects == {}
    with only_writer(bucket.url("run")):
        pass


def held_by(bucket: Bucket, **facts: object) -> bytes:
    """Return another holder's lease, as stored in the bucket."""
    whole = {"id": "theirs", "process": 1, "host": "elsewhere", "machine": "other", **facts}
    return json.dumps(whole).encode()


def test_a_lease_without_signatures_is_taken_over(bucket: Bucket, monkeypatch, capsys):
    monkeypatch.setattr(lease, "VOID_SECONDS", 0.3)
    monkeypatch.setattr("fire_lm.training.lock._LOOK_SECONDS", 0.05)
    bucket.put("run/.lock", held_by(bucket, signed=time.time() + 500))  # whatever its clock says
    start = time.monotonic()
    with only_writer(bucket.url("run")):
        assert time.monotonic() - start > 0.3
        assert json.loads(bucket.objects["run/.lock"])["process"] == os.getpid()
    assert "is locked by process 1 on elsewhere" in capsys.readouterr().out


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_at_once(bucket: Bucket):
    dead = held_by(bucket, signed=time.time(), machine=lease._machine(), process=2**22 + 1)
    bucket.put("run/.lock", dead)
    mine = lease.Lease(bucket.url("run/.lock"))
    assert mine.take() == ""
    mine.release()
    bucket.put("run/.lock", held_by(bucket, signed=time.time(), machine=lease._machine()))
    assert "process 1 on elsewhere" in lease.Lease(bucket.url("run/.lock")).take()  # it is alive


@pytest.mark.parametrize("removed", [True, False])
def test_a_run_whose_lease_is_lost_stops_before_its_next_save(bucket: Bucket, removed):
    with only_writer(bucket.url("run")) as still_ours:
        if removed:
            bucket.delete("run/.lock")
        else:
            bucket.put("run/.lock", held_by(bucket, signed=0.0))
        with pytest.raises(RunFailed, match="was removed or taken over: stopped"):
            still_ours()
    assert ("run/.lock" in bucket.objects) is not removed  # another's lease is kept


def test_a_lease_is_ours_when_only_the_answer_was_lost(bucket: Bucket):
    """The library retries, and the server answers that the precondition is no longer met."""
    bucket.faults = [LostAnswer(match="^POST /upload.*lock", times=1)]
    mine = lease.Lease(bucket.url("run/.lock"))
    assert mine.take() == ""
    bucket.faults = [LostAnswer(match="^POST /upload.*lock", times=1)]
    mine.sign()
    mine.release()
    assert bucket.objects == {}


def test_storage_that_refuses_does_not_lose_a_lease(bucket: Bucket):
    with only_writer(bucket.url("run")) as still_ours:
        bucket.faults = [Status(status=403)]
        with pytest.raises(RunFailed, match="cannot be written") as error:
            still_ours()
        assert not isinstance(error.value, storage.LeaseLost)
        bucket.faults = []
        still_ours()


def test_a_holder_that_signs_is_never_taken_over_whatever_its_clock_says(bucket, monkeypatch):
    monkeypatch.setattr(lease, "SIGN_SECONDS", 0.05)
    holder, other = (lease.Lease(bucket.url("run/.lock")) for _ in range(2))
    signature = holder._signature

    def of_yesterday() -> bytes:
        return json.dumps(json.loads(signature()) | {"signed": 0.0, "machine": "other"}).encode()

    monkeypatch.setattr(holder, "_signature", of_yesterday)
    assert holder.take() == ""
    assert "last seen 1970" in other.take()
    time.sleep(0.2)
    assert not holder.lost
    holder.release()


def test_a_signature_that_is_held_back_does_not_lose_the_lease(bucket: Bucket, monkeypatch):
    monkeypatch.setattr(lease, "SIGN_SECONDS", 0.1)
    monkeypatch.setattr(lease, "ANSWER_SECONDS", 0.2, raising=False)
    monkeypatch.setattr(lease, "VOID_SECONDS", 1.0)
    holder, other = (lease.Lease(bucket.url("run/.lock")) for _ in range(2))
    assert holder.take() == ""
    bucket.faults = [Slow(seconds=1.6, match="^POST /upload.*lock", times=1)]
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert other.take()
        time.sleep(0.05)
    assert not holder.lost
    holder.release()


def test_of_two_sweepers_one_has_the_claim(bucket: Bucket):
    with (
        claimed(bucket.url("run"), "5-plain") as first,
        claimed(bucket.url("run"), "5-plain") as no,
    ):
        assert first is not None and no is None
    with claimed(bucket.url("run"), "5-plain") as again:
        assert again


def position_loss(step: int) -> PositionLoss:
    text = ("embedded", "validation", "concat")
    return PositionLoss("run", "fire", "", step, *text, 64, 0, 63, 640, 1.5, 0.1)


def test_no_row_of_two_writers_is_lost(bucket: Bucket):
    path = storage.presence.epath.Path(bucket.url("run/position_losses.csv"))

    def write(first: int) -> None:
        for number in range(4):
            merge_table(path, PositionLoss, [position_loss(first + 2 * number)])

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_table(path, PositionLoss)
    assert [row.step for row in found] == list(range(8))
    assert bucket.objects.keys() == {"run/position_losses.csv"}


def test_a_table_is_never_replaced_by_one_that_was_read_before(bucket: Bucket, monkeypatch):
    """A writer that is interrupted between reading and writing must not drop the rows of others."""
    path = storage.presence.epath.Path(bucket.url("run/position_losses.csv"))
    merge_table(path, PositionLoss, [position_loss(1)])
    parse = result_files.parse_table

    def parse_while_another_writes(*arguments):
        found = parse(*arguments)
        monkeypatch.setattr(result_files, "parse_table", parse)
        for name in bucket.objects.keys() - {"run/position_losses.csv"}:
            bucket.delete(name)  # as a writer that takes over a lease
        merge_table(path, PositionLoss, [position_loss(2)])
        return found

    monkeypatch.setattr(result_files, "parse_table", parse_while_another_writes)
    merged = merge_table(path, PositionLoss, [position_loss(3)])
    assert [row.step for row in merged] == [1, 2, 3]
    assert read_table(path, PositionLoss) == merged


def test_a_table_that_is_no_text_is_told_as_damaged(tmp_path):
    path = storage.presence.epath.Path(tmp_path / "position_losses.csv")
    path.write_bytes(b"run,encod\xff\n")
    with pytest.raises(RunFailed, match="position_losses.csv is damaged .*: move or delete it"):
        read_table(path, PositionLoss)


def test_the_report_of_preflight_goes_where_one_may_only_write(bucket: Bucket):
    bucket.put("taken/it.json", b"")
    with pytest.raises(UserError, match="--json=gs://.*/taken is a folder: give the path"):
        check_place_of(bucket.url("taken"))
    bucket.faults = [Denied(prefix="", to="reads")]
    check_place_of(bucket.url("new/it.json"))
    bucket.faults = [Denied(prefix="new", to="writes")]
    with pytest.raises(UserError, match="cannot write to --json"):
        check_place_of(bucket.url("new/it.json"))
