"""Files that grow in a bucket, when a run resumes in the middle of one of their parts."""

from bucket import Bucket

from fire_lm.results.metrics_log import logged_steps
from fire_lm.results.trackers import MetricsLog
from fire_lm.storage import appended


def write_steps(folder: str, first: int, last: int, resume: int = 0) -> None:
    log = MetricsLog(folder, resume)
    for step in range(first, last + 1):
        log.write(step, {"loss": 1.0 / step})
    log.close()


def test_parts_are_cut_back_and_filled_on(bucket: Bucket, monkeypatch):
    monkeypatch.setattr(appended, "PART_BYTES", 100)
    for step in range(1, 13):
        write_steps(bucket.url("run"), step, step, resume=step - 1)
    parts = sorted(name for name in bucket.objects if "metrics" in name)
    assert parts == ["run/metrics.jsonl", *(f"run/metrics_{number}.jsonl" for number in (1, 2, 3))]
    uploaded = max(map(len, (bucket.objects[name] for name in parts)))
    assert uploaded < 150  # a full part is never uploaded again
    write_steps(bucket.url("run"), 5, 6, resume=4)
    assert [facts["step"] for facts in logged_steps(bucket.url("run"))] == [1, 2, 3, 4, 5, 6]
    assert "run/metrics_2.jsonl" not in bucket.objects


def test_a_run_copied_from_a_disk_goes_on_in_the_next_part(bucket: Bucket, monkeypatch, capsys):
    """Its file is one long part, from which the lines after the checkpoint are removed."""
    monkeypatch.setattr(appended, "PART_BYTES", 100)
    lines = b"".join(b'{"step": %d, "loss": 1.0}\n' % step for step in range(1, 13))
    bucket.put("run/metrics.jsonl", lines)
    write_steps(bucket.url("run"), 11, 14, resume=10)
    assert [facts["step"] for facts in logged_steps(bucket.url("run"))] == list(range(1, 15))
    assert "run/metrics_1.jsonl" in bucket.objects and not capsys.readouterr().err
