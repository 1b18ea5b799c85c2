"""A job of several slices continues on those that remain when one of them is lost."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bucket_faults import Slow
from environments import with_devices
from sample_run import command_on_blocks, logged
from started_together import free_port
from tpu_cloud import SITE

from fire_lm import cli
from fire_lm.data import Blocks, Synthetic
from fire_lm.data.blocks.reader import BlockIterator
from fire_lm.data.kinds.synthetic import ExerciseIterator
from fire_lm.data.on_the_fly.pipeline import SeqioIterator
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import parse_slice
from fire_lm.preflight.plan import slices_that_fit
from fire_lm.training.goodput import LOST, STOPPED, account, starts
from tpu import __main__ as tpu
from tpu.cluster import load
from tpu.commands import CallFailed, Calls, NotFound
from tpu.follow import Follower
from tpu.job import Job, Stage, State
from tpu.launch import _preflight
from tpu.queued import QueuedResources

FILES = ["configs/runs/c4_125m.gin", "configs/positions/fire.gin", "configs/data/blocks.gin"]


class Machines(Calls):
    """The machines of a request for slices of one host, and their containers."""

    def __init__(self, *nodes: str):
        super().__init__()
        self.nodes = dict.fromkeys(nodes, "READY")
        self.containers: dict[str, str] = {}
        self.started: dict[str, list[str]] = {}
        self.saved: list[str] = []

    def change(self, arguments: Any, stdin: str = "") -> str:
        verb, node = arguments[4], arguments[5]
        if arguments[3] == "queued-resources":
            return json.dumps({"state": {"state": "ACTIVE"}})
        if node not in self.nodes:
            raise NotFound(f"{node} was not found")
        if verb == "describe":
            address = {"ipAddress": f"10.0.{node[-1]}.1"}
            return json.dumps({"state": self.nodes[node], "networkEndpoints": [address]})
        assert self.nodes[node] == "READY", f"{node} cannot be reached"
        command = arguments[-1].removeprefix("--command=")
        if "docker stop" in command:
            assert self.containers[node], "a job saves before its container is removed"
            self.saved.append(node)
        elif "docker rm" in command:
            self.containers.pop(node, None)
        elif "docker run --detach" in command:
            words = command.split()
            self.started[node] = [word for word in words if word.startswith("--env=")]
            label = next(word for word in words if word.startswith("--label="))
            self.containers[node] = label.removeprefix("--label=fire_lm_job=")
        elif "docker inspect" in command:
            label = self.containers.get(node)
            return f"fire_lm|{node}|" + (f"running|0|{label}\n" if label else "none\n")
        return ""


def test_a_job_moves_to_the_slices_that_remain_and_back():
    where = load("v5e_8", [*SITE, "accelerator=4xv5e-8", "min_slices=1"])
    machines = Machines(*(f"a-{index}" for index in range(4)))
    backend = QueuedResources(where, machines)
    job = Job("a", (("fire-lm", "pretrain"),), "gs://b/a", slices=(1, 2, 4))
    assert backend.look(job).stage is Stage.READY
    backend.launch(job)
    assert str(backend.look(job)) == "running: on 4 of 4 hosts"
    assert not any(machines.started.values()), "the machines' metadata are right"

    machines.nodes["a-0"] = "PREEMPTED"
    assert str(backend.look(job)) == (
        "a slice was lost: a-0 is PREEMPTED; resuming on 2 of 4 slices with the same batches"
    )
    backend.setup("a")
    backend.launch(job)
    assert str(backend.look(job)) == "running: on 2 of 2 hosts, 2 of 4 slices"
    for index, node in enumerate(("a-1", "a-2")):
        assert machines.started[node] == [
            "--env=MEGASCALE_COORDINATOR_ADDRESS=10.0.1.1",
            "--env=MEGASCALE_NUM_SLICES=2",
            f"--env=MEGASCALE_SLICE_ID={index}",
        ]
    del machines.nodes["a-2"]
    assert backend.look(job).stage is Stage.FEWER, "a-3 takes its place"
    backend.launch(job)
    assert backend.look(job).stage is Stage.RUNNING and "SLICE_ID=1" in machines.started["a-3"][2]
    other = Job("a", (("fire-lm", "sweep"),), "gs://b/a", slices=(1, 2, 4))
    with pytest.raises(UserError, match="already running other commands"):
        backend.look(other)

    machines.nodes["a-0"] = "READY"
    assert str(backend.look(job)) == "running: on 2 of 2 hosts, 2 of 4 slices", "as before"
    machines.nodes["a-2"] = "READY"
    assert str(backend.look(job)) == "a slice has returned: on 2 of 4 slices so far"
    assert not machines.saved, "a job that has lost a slice cannot save"
    backend.launch(job)
    assert machines.saved == ["a-1", "a-3"], "steps since the last save are not repeated"
    assert str(backend.look(job)) == "running: on 4 of 4 hosts"
    machines.nodes = dict.fromkeys(machines.nodes, "PREEMPTED")
    assert backend.look(job).stage is Stage.LOST


class Scripted:
    """A backend with a list of states, whose TPUs are lost whenever they are set up."""

    def __init__(self, *states: Stage):
        self.states, self.calls = list(states), list[str]()

    def look(self, job: Job) -> State:
        return State(self.states.pop(0))

    def setup(self, name: str) -> None:
        raise CallFailed("preempted again")

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


@pytest.mark.parametrize(
    "states, calls",
    [
        ([Stage.RUNNING, *[Stage.MORE, Stage.RUNNING] * 9, *[Stage.MORE] * 9], []),
        ([*[Stage.ABSENT, Stage.READY, Stage.LOST] * 5], ["create", "delete"] * 5),
        ([Stage.RUNNING, *[Stage.SILENT] * 59], []),
    ],
    ids=["a slice that returns for moments", "preempted when set up", "ssh out for 59 checks"],
)
def test_what_is_lost_again_does_not_end_a_job(states, calls):
    backend = Scripted(*states, Stage.DONE)
    where = SimpleNamespace(retries=9, flags=())
    follower = Follower(Job("a", (), "gs://b/a"), backend, where, every=5.0)  # type: ignore[arg-type]
    follower._nap = lambda: None  # type: ignore[method-assign]
    follower.follow()
    assert backend.calls == [*calls, "delete"], "in the end, the TPUs are released"


def test_without_min_slices_a_lost_slice_is_requested_again():
    machines = Machines("a-0")
    backend = QueuedResources(load("v5e_8", [*SITE, "accelerator=2xv5e-8"]), machines)
    assert backend.look(Job("a", (), "gs://b/a")).stage is Stage.LOST


@pytest.mark.parametrize(
    "bindings, words",
    [
        (["MeshShape.data=-1"], None),
        ([], "MeshShape.data is 8, but the run is to continue on 1 of 2 slices: set "
         "--gin.MeshShape.data=-1"),
        (["MeshShape.data=-1", "BATCH_SIZE=64", "MeshShape.fsdp=128"],
         "on 1 of 2 slices, the mesh data=1 x fsdp=128 x tensor=1 needs 128 devices"),
    ],
)  # fmt: skip
def test_what_could_not_continue_on_fewer_slices_is_refused(bindings, words):
    where = parse_slice("2xv4-128")
    run = load_experiment(FILES, ["DATA_DIR='gs://b/blocks'", *bindings]).train
    if words is None:
        assert slices_that_fit(run, parse_slice("4xv4-64"), 1) == (1, 2, 4), "3 do not divide"
        return
    with pytest.raises(UserError) as told:
        slices_that_fit(run, where, 1)
    assert words in str(told.value)


def test_the_fewest_slices_are_compiled_for_as_well(monkeypatch):
    compiled = []

    def compiles(command, **_):
        compiled.append(command[4])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("tpu.launch.subprocess", SimpleNamespace(run=compiles))
    where = load("v4_8", [*SITE, "accelerator=2xv4-128", "min_slices=1"])
    absent: Any = SimpleNamespace(look=lambda job: State(Stage.ABSENT))
    for slices, names in (((1, 2), ["v4-128", "2xv4-128"]), ((), ["2xv4-128"])):
        _preflight(absent, Job("a", (), "gs://b/a", slices=slices), where, [[]], Calls(), None)
        assert compiled == [f"--slice={name}" for name in names]
        compiled.clear()


def test_text_that_is_read_on_the_fly_cannot_continue_on_fewer_slices():
    run = load_experiment(FILES[:2], ["DATA_DIR='gs://b/c4'", "MeshShape.data=-1"]).train
    with pytest.raises(UserError, match="only the same number of hosts can resume\nuse token bl"):
        slices_that_fit(run, parse_slice("2xv4-128"), 1)


def test_data_that_any_number_of_hosts_can_resume_has_a_shared_position():
    assert (Blocks.any_hosts, BlockIterator.shared_state) == (True, True)
    assert (Synthetic.any_hosts, ExerciseIterator.shared_state) == (True, True)
    own = load_experiment(FILES[:2], ["DATA_DIR='gs://b/c4'"]).train.data
    assert (own.any_hosts, SeqioIterator.shared_state) == (False, False)


class Loss(threading.Thread):
    """Takes slice 0 away for good while the save of step 40 is under way."""

    def __init__(self, cloud: Any, bucket: Any):
        super().__init__(daemon=True)
        self._cloud, self._bucket = cloud, bucket

    def run(self) -> None:
        give_up = time.monotonic() + 120
        while not any("40" in line for line in self._bucket.held) and time.monotonic() < give_up:
            time.sleep(0.05)
        container = self._cloud.folder / "hosts" / "fire-125m-0.0" / "container.json"
        os.killpg(json.loads(container.read_text())["pid"], signal.SIGKILL)
        self._cloud.plan(gone=["fire-125m-0"])


@pytest.mark.ci
def test_a_slice_lost_in_mid_run_costs_time_and_nothing_else(
    cloud, bucket, blocks, tmp_path, monkeypatch, capsys
):
    """The launcher itself resumes the run on the other slice; the processes are real."""
    monkeypatch.setenv("XLA_FLAGS", with_devices(1)["XLA_FLAGS"])
    for path in sorted(blocks.rglob("*")):
        if path.is_file():
            bucket.put(f"blocks/{path.relative_to(blocks)}", path.read_bytes())
    sizes = ["--gin.TRAIN_STEPS=60", "--gin.Checkpointing.save_every=20", "--gin.TRAIN_LENGTH=16"]
    whole = tmp_path / "whole"
    assert cli.main(command_on_blocks(blocks, whole, *sizes)) == 0

    bucket.faults = [Slow(seconds=60.0, match="/40/.*manifest|/40.manifest", times=1)]
    cloud.plan(buckets={bucket.name: "US-WEST4"}, containers=[["running"]], port=free_port())
    verb, *flags = command_on_blocks(bucket.url("blocks"), "", *sizes)
    flags = [flag for flag in flags if not flag.startswith("--workdir")]
    where = ["--cluster=v5e_8", "--cluster.accelerator=2xv5e-1", "--cluster.min_slices=1"]
    where += [f"--cluster.{each}" for each in (SITE[0], f"bucket={bucket.name}", SITE[2])]
    where += ["--no_preflight", "--every=2"]
    loss = Loss(cloud, bucket)
    loss.start()
    assert tpu.main([verb, "fire-125m", *where, *flags]) == 0, logs_of(cloud.folder)
    said = capsys.readouterr().out
    assert said.count("resuming on 1 of 2 slices with the same batches") == 1, said
    assert not cloud.left()

    found = tmp_path / "found"
    for name, content in bucket.objects.items():
        if name.startswith("runs/fire-125m/") and not name.endswith("/"):
            path = found / name.removeprefix("runs/fire-125m/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    ours, theirs = logged(found), logged(whole)
    assert [row["step"] for row in ours] == list(range(1, 61))
    assert [row["batch_hash"] for row in ours] == [row["batch_hash"] for row in theirs]
    # One process adds gradients in another order than two; the difference grows over the steps.
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-3)
    assert [start["machine"]["processes"] for start in starts(str(found))] == [2, 1]
    assert [start["resumed_from"] for start in starts(str(found))] == [0, 20]
    time_by_stage = account(str(found))
    assert time_by_stage[LOST] > 0 and time_by_stage[STOPPED] > 0, time_by_stage


def logs_of(folder: Path) -> str:
    return "\n".join(
        f"{path}:\n{path.read_text()[-3000:]}" for path in folder.glob("hosts/*/log_*")
    )
