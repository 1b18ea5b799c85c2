"""Two processes on one machine train one model, save together and resume together."""

import csv
import fcntl
import json
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from bucket_faults import Slow
from sample_run import assert_same_state, command, command_on_blocks, logged
from started_together import finish, run_together, start_together, wait_for_step

from fire_lm import cli
from fire_lm.checkpoints import available_steps

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 240  # seconds


IN_TURN = """
import json, sys
from fire_lm import cli

sys.exit(max(cli.main(arguments) for arguments in json.loads(sys.argv[1])))
"""


def check_generation(run: Path, folder: Path) -> None:
    """Check that two processes write what one writes, and that an error of the first ends both.

    A single prompt, printed as it is continued, runs in the same two processes.
    """
    prompts, outputs = folder / "prompts.jsonl", (folder / "one.jsonl", folder / "two.jsonl")
    prompts.write_text('{"prompt": "fire and "}\n{"prompt": "so they "}\n{"prompt": "rope"}\n')
    arguments = ["generate", str(run), f"--prompts={prompts}", "--new_tokens=4", "--beams=2"]
    assert cli.main([*arguments, f"--output={outputs[0]}"]) == 0
    printed = ["generate", str(run), "--prompt=fire and ", "--new_tokens=4"]
    asked = json.dumps([[*arguments, f"--output={outputs[1]}"], printed])
    started = start_together(["-c", IN_TURN, asked], 2, module=())
    told = finish(started)
    assert [process.returncode for process in started] == [0, 0], told
    assert ["tokens, ended by " in output for output in told] == [True, False], told
    one, two = ([json.loads(line) for line in p.read_text().splitlines()] for p in outputs)
    texts = [[[c["text"] for c in line["continuations"]] for line in lines] for lines in (one, two)]
    assert len(one) == 3 and texts[0] == texts[1]
    prompts.write_text("no prompts\n")
    started = start_together(arguments, 2)
    told = finish(started, 60)
    assert [process.returncode for process in started] == [2, 2], told


def check_sweep(run: Path, folder: Path) -> None:
    """Check that two processes score every checkpoint as one does."""
    flags = ["--gin.EVAL_LENGTHS=32,64", "--gin.length_sweep.tokens=4096"]
    alone, together = (shutil.copytree(run, folder / name) for name in ("alone", "together"))
    assert cli.main(["sweep", f"{alone}@all", *flags]) == 0
    started = start_together(["sweep", f"{together}@all", *flags], 2)
    told = finish(started)
    assert {process.returncode for process in started} == {0}, told
    rows = []
    for workdir in (alone, together):
        with (workdir / "length_sweep.csv").open() as file:
            rows.append([(row["step"], row["length"], row["nll"]) for row in csv.DictReader(file)])
    one, two = ([(*key, float(nll)) for *key, nll in each] for each in rows)
    assert [each[:2] for each in one] == [each[:2] for each in two] and len(one) == 2 * 3
    assert [each[2] for each in one] == pytest.approx([each[2] for each in two], rel=1e-5)
    assert len({each[2] for each in one}) == 6


@pytest.mark.ci
def test_two_processes_train_and_resume_to_the_same_bits(data_dir, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_together(command(data_dir, whole), 2)
    shutil.copytree(whole, stopped)
    for name in ("10", "12"):
        (stopped / "checkpoints" / name).rename(tmp_path / f"away_{name}")
    assert available_steps(stopped) == [5]
    run_together(command(data_dir, stopped), 2, resumed=5)

    check_generation(whole, tmp_path)
    check_sweep(whole, tmp_path)

    positions = sorted(path.name for path in (whole / "checkpoints/12/position").glob("process*"))
    assert positions == ["process_0000_of_0002", "process_0001_of_0002"]
    columns = ("step", "tokens", "loss", "grad_norm")
    assert len(logged(whole)) == 12
    for ours, theirs in zip(logged(stopped), logged(whole), strict=True):
        assert {n: ours[n] for n in columns} == {n: theirs[n] for n in columns}


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.ci),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_one_of_two_stops_both_at_the_same_step(blocks, tmp_path, signum):
    """Both processes read the same rows, and each has a part of every layer."""
    more = ["--gin.TRAIN_STEPS=150", "--gin.Checkpointing.save_every=50"]
    more += ["--gin.MeshShape.data=1", "--gin.MeshShape.tensor=2"]
    arguments = command_on_blocks(blocks, tmp_path / "stopped", *more)
    started = start_together(arguments, 2)
    wait_for_step(tmp_path / "stopped", 20, started)
    started[1].send_signal(signum)
    outputs = finish(started)
    last = available_steps(tmp_path / "stopped")[-1]
    assert 20 < last < 150
    by = ["SIGTERM", "Ctrl-C" if signum == signal.SIGINT else "SIGTERM"]
    for process, output, name in zip(started, outputs, by, strict=True):
        assert process.returncode == 3, output[-3000:]
        assert f"stopped by {name} after step {last}, which is saved" in output
    run_together(arguments, 2, resumed=last)
    run_together(command_on_blocks(blocks, tmp_path / "whole", *more), 2)
    assert logged(tmp_path / "stopped") == logged(tmp_path / "whole")
    assert_same_state(tmp_path / "stopped", tmp_path / "whole", 150)


@pytest.mark.ci
def test_a_killed_process_is_named(blocks, tmp_path):
    arguments = command_on_blocks(blocks, tmp_path / "run", "--gin.TRAIN_STEPS=150")
    arguments.append("--gin.Watchdog.silence_seconds=10")
    started = start_together(arguments, 2)
    wait_for_step(tmp_path / "run", 20, started)
    started[1].kill()
    began = time.monotonic()
    output = finish(started, 90)[0]
    assert time.monotonic() - began < 90 and started[0].returncode != 0
    name = f"process 1 ({socket.gethostname()}, pid {started[1].pid})"
    assert name in output.splitlines()[-2], output[-3000:]


@pytest.mark.ci
def test_a_directory_that_another_run_holds_is_refused_by_both(data_dir, tmp_path):
    """Only process 0 asks for the lock; the other would otherwise wait for it."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    with (workdir / ".lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("process 12345 on another host\n")
        file.flush()
        began = time.monotonic()
        started = start_together(command(data_dir, workdir), 2)
        outputs = finish(started, 90)
    assert time.monotonic() - began < 90
    assert [process.returncode for process in started] == [2, 2], outputs
    for output in outputs:
        assert f"{workdir} is in use by process 12345" in output, output[-3000:]
        assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "bindings", [["TRAIN_STEPS=20"], ["TRAIN_STEPS=3", "Spikes.skips_allowed=9"]]
)
def test_a_run_stopped_by_its_loss_ends_once_its_spike_log_is_in_the_bucket(
    data_dir, bucket, bindings
):
    """The launcher on each host then finds the reason there, and does not restart the run."""
    more = [f"--gin.{binding}" for binding in ("AdamW.learning_rate=1e30", *bindings)]
    arguments = command(data_dir, bucket.url("run"), *more)
    # Process 0 uploads the log, and process 1 has nothing to do meanwhile.
    bucket.faults = [Slow(seconds=5.0, match="^POST .*spikes")]
    started = start_together(arguments, 2)
    started[1].wait(PATIENCE)
    lines = bucket.objects.get("run/spikes.jsonl", b"").decode().splitlines()
    outputs = finish(started)
    assert lines and json.loads(lines[-1]).get("stopped"), outputs
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 1 and "fire-lm: " in output, output[-3000:]
    assert "run/.lock" not in bucket.objects


ON_PROCESS_1 = """
import os, sys
import jax
import fire_lm.data
from fire_lm import cli, processes
from fire_lm.errors import UserError
from fire_lm.training import watchdog

watchdog._START_SECONDS = 5.0
what, *arguments = sys.argv[1:]

def no_text(*_, **__):
    raise UserError("there is no text here")

if os.environ["JAX_PROCESS_ID"] == "1":
    if what == "error":
        fire_lm.data.train_iterator = no_text
    else:
        processes.initialize_distributed()
        jax.devices()  # the processes have met
        os.kill(os.getpid(), 9)
sys.exit(cli.main(arguments))
"""


@pytest.mark.ci
def test_an_error_of_one_process_ends_both_with_its_words_and_code(data_dir, tmp_path):
    arguments = command(data_dir, tmp_path / "run")
    began = time.monotonic()
    started = start_together(["-c", ON_PROCESS_1, "error", *arguments], 2, module=())
    outputs = finish(started, 90)
    assert time.monotonic() - began < 90
    assert [process.returncode for process in started] == [2, 2], outputs
    assert f"process 1 ({socket.gethostname()}, pid {started[1].pid}): there is no" in outputs[0]
    assert "fire-lm: there is no text here" in outputs[1]


@pytest.mark.ci
def test_a_process_that_dies_before_its_first_word_is_named(blocks, tmp_path):
    arguments = command_on_blocks(blocks, tmp_path / "run")
    arguments.append("--gin.Watchdog.silence_seconds=10")
    began = time.monotonic()
    started = start_together(["-c", ON_PROCESS_1, "die", *arguments], 2, module=())
    output = finish(started, 90)[0]
    assert time.monotonic() - began < 90 and started[0].returncode not in (0, -6)
    assert "no message from process 1" in output, output[-3000:]


LATE = """
import time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fire_lm.processes import initialize_distributed, wait_for_all

initialize_distributed()
split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
total = jax.jit(lambda x: x.sum()).lower(jax.ShapeDtypeStruct((2,), "float32", sharding=split))
total = total.compile()
if jax.process_index() == 1:
    time.sleep(40)  # as if it compiled that much longer
wait_for_all("compiled")
ones = jax.make_array_from_process_local_data(split, np.ones(1, np.float32))
print(float(total(ones)))
"""


@pytest.mark.slow
def test_one_that_compiles_much_longer_holds_up_but_does_not_end_the_job():
    """Without the barrier, gloo gives up after 30 s, and both end after 200 s (seen once)."""
    started = start_together(["-c", LATE], 2, module=())
    outputs = finish(started)
    assert [output.split()[-1] for output in outputs] == ["2.0", "2.0"], outputs


FAILS_ON_ONE = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from fire_lm.checkpoints import Checkpointing, Checkpoints, orbax_checkpointer, position
from fire_lm.processes import initialize_distributed

initialize_distributed()
orbax_checkpointer.WRITING_SECONDS = 10
save = position._PositionHandler.save

def fail(self, directory, args):
    raise OSError(28, "No space left on device")

split = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
ones = jax.make_array_from_process_local_data(split, np.ones(1, np.float32))
saves = Checkpoints(sys.argv[1], Checkpointing())
for step in (1, 2, 3):
    wrong = step == 2 and jax.process_index() == 1
    position._PositionHandler.save = fail if wrong else save
    saves.save(step, {"ones": ones}, b"position", {})
    saves.settle()
saves.close()
print("closed")
"""


@pytest.mark.ci
def test_a_save_that_fails_in_one_process_has_failed_in_both(tmp_path):
    """Both continue, and the next save is complete."""
    outputs = finish(start_together(["-c", FAILS_ON_ONE, str(tmp_path)], 2, module=()))
    assert available_steps(tmp_path) == [1, 3], outputs
    for output in outputs:
        assert "closed" in output
    assert "checkpoint 2 of" in outputs[0] and "process 1: [Errno 28]" in outputs[0]
