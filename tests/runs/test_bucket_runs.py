"""Complete runs in a bucket by the real command line, compared with the same runs on disk."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from bucket import UNSET, Bucket
from bucket_faults import Cut, Denied, OneWriteASecond, Slow, Status
from sample_run import (
    command,
    command_on_blocks,
    logged,
    saved_state,
    write_text,
    write_token_blocks,
)
from started_together import finish, run_together, start_together

from fire_lm.checkpoints import Checkpointing, Checkpoints, available_steps
from fire_lm.cli import main
from fire_lm.reporting.gather import gather

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds
FAULTS = (Status(status=503, chance=0.05), Cut(chance=0.02))
SWEEP = ["--gin.EVAL_LENGTHS=32,64", "--gin.length_sweep.tokens=2048"]
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_text(tmp_path_factory.mktemp("text") / "data")


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    return write_token_blocks(tmp_path_factory.mktemp("blocks"))


def arguments(data_dir: Path, workdir: Path | str, steps: int) -> list[str]:
    return command(data_dir, workdir, f"--gin.TRAIN_STEPS={steps}")


@pytest.fixture(scope="module")
def local(data_dir, tmp_path_factory):
    """Train on disk for 20 steps, then to 40, and sweep all checkpoints."""
    workdir = tmp_path_factory.mktemp("local") / "fire"
    for steps in (20, 40):
        assert main(arguments(data_dir, workdir, steps)) == 0
    assert main(["sweep", str(workdir), *SWEEP, "--follow"]) == 0
    return workdir


def copied(bucket: Bucket, folder: Path) -> Path:
    """Copy the bucket's run to disk, as `gcloud storage cp -r` does."""
    for name, content in bucket.objects.items():
        if not name.endswith("/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    return folder / "runs" / "fire"


def assert_same_run(found: Path, expected: Path, steps: int) -> None:
    assert [row["step"] for row in logged(found)] == list(range(1, steps + 1))
    assert logged(found) == logged(expected)
    states = [saved_state(workdir, steps) for workdir in (found, expected)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[1].items():
        np.testing.assert_array_equal(states[0][name], value, err_msg=name)


def assert_same_table(found: str, expected: str) -> None:
    """Compare to 1e-6, since four CPU devices do not always sum in the same order."""
    tables = [[line.split(",") for line in text.splitlines()] for text in (found, expected)]
    assert [len(row) for row in tables[0]] == [len(row) for row in tables[1]]
    for ours, theirs in zip(sum(tables[0], []), sum(tables[1], []), strict=True):
        assert ours == theirs or float(ours) == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.slow
def test_a_run_under_faults_equals_one_on_a_disk(data_dir, local, bucket, tmp_path, capfd):
    workdir = bucket.url("runs/fire")
    bucket.faults = FAULTS
    for steps in (20, 40):
        assert main(arguments(data_dir, workdir, steps)) == 0
    assert main(["sweep", workdir, *SWEEP]) == 0  # the newest checkpoint
    assert main(["sweep", workdir, *SWEEP, "--follow"]) == 0  # the other checkpoints
    bucket.faults = []
    assert main(["report", workdir]) == 0
    printed = capfd.readouterr()
    for noise in ("Event loop is closed", "Traceback", "cudart", "oneDNN", "absl::InitializeLog"):
        assert noise not in printed.out + printed.err

    with bucket.counting() as counted:
        gather([workdir], with_probes=False)
    assert counted.count() <= 40, counted.operations()
    found = copied(bucket, tmp_path)
    assert_same_run(found, local, 40)
    for name in ("length_sweep.csv", "position_losses.csv"):
        assert_same_table((found / name).read_text(), (local / name).read_text())
    assert (found / "length_sweep.png").stat().st_size and (found / "report/index.html").exists()
    assert main(["sweep", str(found), *SWEEP]) == 0  # a copy is a run


@contextlib.contextmanager
def started(bucket: Bucket, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        cwd=ROOT,
        env=bucket.child_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], reached: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < give_up
        time.sleep(0.002)


def ended(bucket: Bucket, step: int) -> bool:
    return f"runs/fire/checkpoints/{step}/manifest.sha256" in bucket.objects


def unfinished(bucket: Bucket) -> set[int]:
    """Return the steps whose save has begun but not ended."""
    names = (re.match(r"runs/fire/checkpoints/(\d+)/", name) for name in bucket.objects)
    return {step for name in names if name and not ended(bucket, step := int(name[1]))}


def test_a_run_that_is_killed_in_a_save_and_terminated_ends_as_if_never(blocks, tmp_path):
    """The process that ends it works with a bucket that fails at times."""

    def command_of(workdir: Path | str) -> list[str]:
        more = ("--gin.TRAIN_STEPS=90", "--gin.Checkpointing.save_every=15")
        return command_on_blocks(blocks, workdir, *more)

    with Bucket() as bucket:
        command = command_of(bucket.url("runs/fire"))
        # Hold back its last request, so that the signal arrives during the save on any machine.
        bucket.faults = [Slow(seconds=5.0, match="30.manifest")]
        with started(bucket, command) as process:
            wait_for(process, lambda: bucket.held)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert unfinished(bucket) == {30}
        bucket.faults = [Slow(seconds=5.0, match="60.manifest")]
        with started(bucket, command) as process:
            wait_for(process, lambda: any("60" in request for request in bucket.held))
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 3 and "run the same command to resume" in errors, errors
        assert "runs/fire/.lock" not in bucket.objects and not unfinished(bucket)
        bucket.faults = FAULTS
        with bucket.counting() as counted, started(bucket, command) as process:
            _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        assert any(request.fault for request in counted.requests)
        found = copied(bucket, tmp_path)
    assert main(command_of(tmp_path / "whole")) == 0
    assert_same_run(found, tmp_path / "whole", 90)


@pytest.mark.slow
def test_two_processes_save_and_resume_in_a_bucket(blocks, tmp_path, monkeypatch):
    """Each of them saves and restores its part of every array."""
    with Bucket(faults=[OneWriteASecond()]) as bucket:
        for name in UNSET:
            monkeypatch.delenv(name, raising=False)
        # Use delays, because an object may be written only once a second.
        for name, value in bucket.environment(retry_ms=200).items():
            monkeypatch.setenv(name, value)
        train_on_two(blocks, bucket.url("runs/fire"))
        whole = logged(copied(bucket, tmp_path / "whole"))
        for name in bucket.objects:
            if "/checkpoints/12/" in name:
                bucket.delete(name)
        train_on_two(blocks, bucket.url("runs/fire"), resumed=6)
        resumed = logged(copied(bucket, tmp_path / "resumed"))
    columns = ("step", "tokens", "loss", "grad_norm", "batch_hash")
    assert [row["step"] for row in resumed] == list(range(1, 13))
    for ours, theirs in zip(resumed, whole, strict=True):
        assert {n: ours[n] for n in columns} == {n: theirs[n] for n in columns}


def train_on_two(blocks: Path, workdir: Path | str, resumed: int = 0) -> None:
    more = ("--gin.Checkpointing.save_every=6", "--gin.MeshShape.data=1", "--gin.MeshShape.fsdp=2")
    run_together(command_on_blocks(blocks, workdir, *more), 2, resumed)


LEASED = """
import contextlib, json, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fire_lm.checkpoints import Checkpointing, Checkpoints, writer
from fire_lm.processes import initialize_distributed
from fire_lm.storage import objects
from fire_lm.training.lock import only_writer

initialize_distributed()
run, leads = sys.argv[1], jax.process_index() == 0
split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
ones = jax.make_array_from_process_local_data(split, np.ones(1, np.float32))
fingerprints = writer.fingerprints

def taken_over(tree):
    if leads:
        facts = {"id": "later", "host": "elsewhere", "process": 1, "machine": "other"}
        objects.write(run + "/.lock", json.dumps(facts).encode())
    return fingerprints(tree)

with only_writer(run) as still_ours:
    saves = Checkpoints(run, Checkpointing(keep_last=2), still_ours=still_ours)
    print("resumes from", saves.recover(), flush=True)
    for step in (20, 30, 40):
        if step == 40:
            writer.fingerprints = taken_over
        saves.save(step, {"ones": ones}, b"place", {}, shared_position=True)
        saves.settle()
        print("after", step, saves._failure, flush=True)
print("end", flush=True)
"""


def test_two_processes_wait_for_the_lease_share_a_refusal_and_end_with_the_lease(bucket):
    """Two processes wait for an earlier job, fail one save together, and stop for a later job.

    The earlier job, still alive, ends its save of step 12 while they wait. Their own save of step
    20 is refused to process 0 only. During that of step 40, a later job takes over the run.
    """
    run = bucket.url("run")
    with contextlib.closing(Checkpoints(run, Checkpointing())) as earlier:
        for step in (6, 12):
            earlier.save(step, {"ones": jnp.ones(2)}, b"place", {}, shared_position=True)
    manifest = "run/checkpoints/12/manifest.sha256"
    held = bucket.objects[manifest]
    bucket.delete(manifest)
    facts = {
        "id": "earlier",
        "host": "old-host",
        "process": 1,
        "machine": "other",
        "signed": time.time(),
    }
    bucket.put("run/.lock", json.dumps(facts).encode())
    bucket.faults = [Denied(prefix="run/checkpoints/20", to="writes")]
    with bucket.counting() as counted:
        processes = start_together(["-c", LEASED, run], 2, module=())
        with contextlib.ExitStack() as ends:
            for process in processes:
                ends.callback(process.kill)
            wait_for(processes[0], lambda: counted.count("^GET .*lock") > 1)
            time.sleep(3)  # as long as a process that did not wait would need
            assert counted.count("checkpoints") == 0
            bucket.put(manifest, held)
            bucket.delete("run/.lock")
            outputs = finish(processes, PATIENCE)
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
        assert "resumes from 12" in output
        assert re.search("after 20 checkpoint 20 of .*loopback does not have", output), output
        assert "after 30 checkpoint 20" in output
        assert re.search("after 40 checkpoint 40 of .* taken over: stopped", output)
    assert "is locked by process 1 on old-host" in outputs[0]
    assert available_steps(run) == [12, 30], "40 is left to the later job"
    assert any("/checkpoints/40/" in name for name in bucket.objects)
    assert json.loads(bucket.objects["run/.lock"])["id"] == "later"
