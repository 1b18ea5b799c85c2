"""FLOPs by the stated convention, the progress line, and the log that resumes."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from sample_decoders import shapes_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fire_lm import console, models, positions
from fire_lm.console import Progress, duration, phase
from fire_lm.hardware.flops import flops_per_token, peak_flops
from fire_lm.results.trackers import MetricsLog
from fire_lm.training.summary import model_flops_per_token


def test_flops_of_125m_worked_by_hand():
    layer = 4 * (768 * 768 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 2 * (2 * 768)
    non_embedding = 12 * layer + 2 * 768
    head = 32_128 * 768
    by_hand = 6 * (non_embedding + head) + 12 * 12 * 768 * 2048
    assert by_hand == 884_874_240

    def flops(encoding: str, share: bool = False, window: int | None = None) -> float:
        kind = positions.encodings()[encoding]
        position = (models.Layers(kind, window=window), kind) if window else kind
        size = models.size_125m()
        model = models.build_decoder(size, position, 32_128, 2048, share_position=share)
        return model_flops_per_token(model, shapes_of(model), 2048)

    assert flops("NoPE") == flops("FIRE") == flops("FIRE", share=True) == by_hand
    saved = 12 * 6 * 768 * (2048 - 512)  # in every second layer
    assert flops("NoPE", window=512) == by_hand - saved
    assert flops("NoPE", window=4096) == by_hand
    assert flops_per_token(non_embedding, 12, 768, 2048) != by_hand  # without the head


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("cpu", None),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
    ],
)
def test_peak_by_device_kind(kind, peak):
    assert peak_flops(kind) == peak


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (123, "2:03"), (3599.7, "1:00:00"), (90_061, "25:01:01")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.fixture
def clock(monkeypatch):
    """Replace the monotonic clock by one that the test sets: `clock[0] = seconds`."""
    now = [100.0]
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_progress_in_a_file_is_a_line_at_the_interval_and_at_the_end(clock, capsys):
    progress = Progress(total=40)
    for step in range(21, 41):
        clock[0] += 1.0
        progress.show(step, f"loss {step}")
    progress.close()
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["21/40", "26/40", "31/40", "36/40", "40/40"]
    assert shown[1].endswith("26/40  loss 26  ETA 0:14")  # 6 steps took 6 s: the rest takes 14
    assert "#" * 20 in shown[-1]
    assert not any("\r" in line for line in shown)


def test_the_time_left_follows_the_share_of_all_work_if_it_is_given(clock, capsys):
    """Steps that stand still while other runs compile or are scored do not make the ETA jump."""
    progress = Progress(total=100)
    progress.show(0, "compiling", 0.0)
    for share in (0.25, 0.5, 0.75):
        clock[0] += 60.0
        progress.show(50, "scoring", share)
    etas = [line.partition("ETA ")[2] for line in capsys.readouterr().out.splitlines()]
    assert etas == ["", "3:00", "2:00", "1:00"]


def test_the_time_left_follows_the_rate_of_the_last_minute(clock, capsys):
    """Start-up does not count, nor do steps before a slow-down."""
    progress = Progress(total=1000)
    clock[0] += 300.0  # compilation
    progress.show(1, "")
    for step in range(2, 302):
        clock[0] += 1.0 if step > 100 else 10.0
        progress.show(step, "")
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "ETA" not in first
    # Every fifth second is shown: 301 steps without the last. The rest takes a second per step.
    assert last.split()[1] == "300/1000" and last.endswith("ETA 11:40")


def test_a_patient_progress_says_nothing_of_what_is_soon_over(clock, capsys):
    for seconds, lines in ((1.0, 0), (4.0, 2)):
        progress = Progress(total=3, patient=True)
        for done in (1, 2, 3):
            clock[0] += seconds
            progress.show(done, "rows")
        progress.close()
        assert len(capsys.readouterr().out.splitlines()) == lines


def test_small_amounts_are_shown_in_parts_of_their_unit(clock, capsys):
    Progress(total=3_400_000, unit=10**6).show(250_000, "MB")
    Progress(total=3_400_000_000, unit=10**6).show(250_000_000, "MB")
    small, large = capsys.readouterr().out.splitlines()
    assert "] 0.2/3.4  MB" in small and "] 250/3400  MB" in large


def test_a_phase_gives_signs_of_life(monkeypatch, capsys):
    import time

    monkeypatch.setattr(console, "_SIGN_OF_LIFE", 0.02)
    with phase("compiling"):
        time.sleep(0.1)
    words = capsys.readouterr().out.split()
    assert words[0] == "compiling" and words.count("...") >= 3 and words[-1] == "s"


def test_progress_in_a_terminal_is_one_line_that_changes(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    progress = Progress(total=20)
    for step in range(1, 21):
        clock[0] += 0.1
        progress.show(step, "")
    progress.close()
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and 8 <= out.count("\r") <= 12  # every 0.2 s during 2 s


def test_quiet_progress_says_nothing(clock, capsys):
    progress = Progress(total=2, quiet=True)
    progress.show(2, "")
    progress.close()
    assert capsys.readouterr().out == ""


def test_log_drops_what_comes_after_the_resume_step_and_a_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(tmp_path, 0)
    for step in range(1, 6):
        log.write(step, {"loss": 1.0 / step})
    log.close()
    path.write_text(path.read_text() + '{"step": 6, "lo')  # as left by a kill

    log = MetricsLog(tmp_path, 3)
    for step in range(4, 7):
        log.write(step, {"loss": 10.0})
    log.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == [1.0, 1 / 2, 1 / 3, 10.0, 10.0, 10.0]

    events = EventAccumulator(str(tmp_path))  # drops events that a later start supersedes
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events.Scalars("loss")][3:] == [10.0] * 3


FOREIGN = ['{"note": "mine"}', '{"stfp": 1, "loss": 2.0}', '{"step": "1"}', '{"step": null}', "[1]"]


def test_lines_that_no_run_has_written_are_dropped(tmp_path):
    """A flipped bit or a user's note must not prevent the next start."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(['{"step": 1, "loss": 2.0}', *FOREIGN, '{"step": 2}', ""]))
    MetricsLog(tmp_path, 2).close()
    assert path.read_text() == '{"step": 1, "loss": 2.0}\n{"step": 2}\n'


def test_a_new_log_keeps_nothing_of_a_run_without_checkpoint(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    MetricsLog(tmp_path, 0).close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


FULL_DISK = """
import resource, sys
from fire_lm.results.trackers import MetricsLog

log = MetricsLog(sys.argv[1], 0)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
for step in range(1, 503):
    if step == 3:  # as on a full disk: no file may grow any more
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    if step == 501:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write(step, {"loss": 1.0 / step})
log.close()
"""


@pytest.mark.ci
def test_events_that_cannot_be_opened_do_not_end_training(tmp_path, monkeypatch, capsys):
    def full(workdir: str, resume_step: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fire_lm.results.trackers.TensorBoardEvents", full)
    log = MetricsLog(tmp_path, 0)
    log.write(1, {"loss": 1.0})
    log.flush()
    log.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'
    told = capsys.readouterr().err
    assert told.count("TensorBoard events cannot be written") == 1 and "training continues" in told


@pytest.mark.ci
def test_lines_wait_while_the_disk_is_full(tmp_path):
    arguments = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("metrics.jsonl cannot be written") == 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 503))
    assert done.stderr.count("TensorBoard events cannot be written") == 1
    events = EventAccumulator(str(tmp_path), {"scalars": 0})  # 0: keep all
    events.Reload()
    assert [one.step for one in events.Scalars("loss")] == list(range(1, 503))
