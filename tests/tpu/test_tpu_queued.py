"""Jobs on queued resources, against stand-ins for gcloud and for docker on the hosts.

Commands for a host run in a real shell.
"""

import json
from types import SimpleNamespace

import pytest
from tpu_cloud import EXPERIMENT, GS, SITE, WHERE, pretrain, run

from fire_lm.experiment import load_experiment
from fire_lm.runs.saved import save_config as save
from tpu.cluster import load
from tpu.commands import Calls
from tpu.job import Job
from tpu.queued import QueuedResources

MARK = "--mark=gs://my-bucket/runs/fire-125m/logs/done-"


def test_a_run_from_nothing_to_its_end(cloud, capsys):
    cloud.plan(
        states=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]],
        objects={
            f"{GS}/fire-125m/metrics_10.jsonl": '{"step": 1200, "loss": 3.25}\n',
            f"{GS}/fire-125m/metrics_9.jsonl": '{"step": 1100, "loss": 3.5}\n',
        },
    )
    assert pretrain() == 0
    said = capsys.readouterr().out
    for words in (
        "WAITING_FOR_RESOURCES, in the queue",
        "PROVISIONING",
        "running: on 1 of 1 hosts",
    ):
        assert words in said, said
    assert "step 1,200, loss 3.250" in said and "its TPUs are released" in said
    assert not cloud.left()
    created = cloud.calls("queued-resources", "create")[0]
    for flag in (
        *("--project=my-project", "--zone=us-central2-b", "--accelerator-type=v4-8"),
        *("--node-id=fire-125m", "--runtime-version=tpu-ubuntu2204-base", "--spot"),
    ):
        assert flag in created
    command = cloud.started()[0]
    assert command[command.index("-m") : command.index("-m") + 2] == ["-m", "tpu.host"]
    (told,) = json.loads(command[-1].removeprefix("--job="))
    assert told[:3] == ["fire-lm", "pretrain", f"--workdir={GS}/fire-125m"]
    assert "--gin.DATA_DIR=gs://my-bucket/data" in told
    assert any(argument.startswith(MARK) for argument in command)


@pytest.mark.ci
def test_what_is_done_is_not_booked_again(cloud, capsys):
    assert pretrain() == 0
    assert pretrain() == 0
    assert "done: earlier" in capsys.readouterr().out
    assert len(cloud.calls("queued-resources", "create")) == 1
    assert pretrain("--gin.TRAIN_STEPS=900000") == 0  # another job
    assert len(cloud.calls("queued-resources", "create")) == 2


def test_a_job_whose_gin_file_has_changed_is_another_job(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr("tpu.image.contains", lambda path: True)
    monkeypatch.setattr("tpu.flags.ROOT", tmp_path)
    flags = [f"--gin_file={tmp_path}/own.gin", f"--gin_search_paths={tmp_path}"]
    for text, created in (("SEED = 1", 1), ("# a comment\nSEED = 1", 1), ("SEED = 2", 2)):
        (tmp_path / "own.gin").write_text(text)
        assert pretrain(*flags) == 0
        assert len(cloud.calls("queued-resources", "create")) == created


def test_flags_come_to_the_host_as_they_were_given(cloud):
    """Quotes, spaces and special characters survive the host's shell."""
    odd = "--gin.POSITION='[@FIRE, @NoPE]'; touch /tmp/x $(id) `id` \"q\" \\ *"
    assert pretrain("--gin.TAG=" + odd, "--debug") == 2  # no such macro: nothing was started
    assert not cloud.calls("create")
    where = load("v4_8", SITE)
    job = Job("odd", (("fire-lm", "pretrain", odd),), "gs://my-bucket/runs/odd")
    place = QueuedResources(where, Calls())
    place.create(job)
    place.look(job)
    place.launch(job)
    assert json.loads(cloud.started()[0][-1].removeprefix("--job=")) == [
        ["fire-lm", "pretrain", odd]
    ]


@pytest.mark.ci
def test_a_preempted_run_is_asked_for_again_and_goes_on(cloud, capsys):
    cloud.plan(
        states=[["ACTIVE", "ACTIVE", "SUSPENDED"], ["WAITING_FOR_RESOURCES", "ACTIVE"]],
        containers=[["running"], ["running", "exited:0"]],
    )
    assert pretrain() == 0
    said = capsys.readouterr().out
    assert "the TPUs were lost: SUSPENDED, preempted" in said
    deleted = cloud.calls("queued-resources", "delete")
    assert len(deleted) == 2 and len(cloud.calls("queued-resources", "create")) == 2
    first, second = cloud.started()
    assert first == second or first[1:] == second[1:]
    assert not cloud.left()


@pytest.mark.ci
def test_it_is_not_asked_for_more_often_than_retries(cloud, capsys):
    cloud.plan(states=[["SUSPENDED"]] * 9)
    assert pretrain() == 1
    assert "giving up after 3 attempts" in capsys.readouterr().err
    assert len(cloud.calls("queued-resources", "create")) == 3 and not cloud.left()


def test_a_vanished_machine_is_lost(cloud, capsys):
    cloud.plan(states=[["ACTIVE"], ["ACTIVE"]], gone=["fire-125m"])
    assert pretrain() == 1
    assert "the request is ACTIVE, but its TPU is gone" in capsys.readouterr().out
    assert not cloud.left()


@pytest.mark.ci
@pytest.mark.parametrize("slice_, hosts", [("v4-32", 4), ("2xv4-16", 4)])
def test_it_starts_on_all_hosts_or_on_none(cloud, capsys, slice_, hosts):
    last = "fire-125m.3" if slice_ == "v4-32" else "fire-125m-1.1"
    cloud.plan(no_start={last: 1}, containers=[["running"], ["running", "running", "exited:0"]])
    assert pretrain(f"--cluster.accelerator={slice_}", "--gin.MeshShape.data=16") == 0
    said = capsys.readouterr().out
    assert "did not start on every host and was removed from all of them" in said
    hosts_started = [call[0] for call in cloud.started()]
    assert len(set(hosts_started)) == hosts and len(hosts_started) == 2 * hosts
    first_round = [c for c in cloud.calls("rm", "--force") if c[0] == f"docker@{last}"]
    assert len(first_round) == 3  # before each start, and after the one that failed
    assert f"running: on {hosts} of {hosts} hosts" in said


@pytest.mark.parametrize("daemon", ["down", "ending"])
def test_a_job_goes_on_while_docker_does_not_respond(cloud, capsys, daemon):
    """Such a host still has its container; to start another would repeat steps."""
    cloud.plan(
        daemons={"fire-125m.0": ["up", "up", daemon, "up"]},
        containers=[["running", "running", "exited:0"]],
    )
    assert pretrain() == 0
    assert "0 of 1 hosts respond" in capsys.readouterr().out
    assert len(cloud.started()) == 1


@pytest.mark.ci
def test_a_host_that_does_not_answer_is_no_start(cloud, capsys):
    cloud.plan(mute=[2])
    assert pretrain("--cluster.accelerator=v4-32", "--cluster.retries=0") == 1
    assert "3 of 4 hosts respond" in capsys.readouterr().out
    assert not cloud.left() and not cloud.started()


@pytest.mark.parametrize(
    "code, words, exit_code",
    [
        (5, "fire-125m was stopped after saving", 3),
        (2, "ended with exit code 2, a configuration error", 2),
        (4, "stopped at a loss that is not finite and is not restarted", 1),
        (1, "exit code 1 on fire-125m.0", 1),
    ],
)
def test_a_job_that_failed_is_told_and_its_tpus_given_back(cloud, capsys, code, words, exit_code):
    cloud.plan(containers=[["running", f"exited:{code}"]])
    assert pretrain() == exit_code
    told = capsys.readouterr()
    assert words in told.err and ("step 100 of fire-125m.0" in told.out or code == 5)
    assert len(cloud.started()) == 1 and cloud.left() == (["fire-125m"] if code == 5 else [])


@pytest.mark.parametrize("code", [3, pytest.param(137, marks=pytest.mark.ci)])
def test_one_that_was_killed_from_outside_starts_again(cloud, code):
    """The host, which was itself restarted, starts it again."""
    cloud.plan(containers=[["running", f"exited:{code}"], ["running", "exited:0"]])
    assert pretrain("--cluster.retries=1") == 0
    assert len(cloud.started()) == 2 and len(cloud.calls("queued-resources", "create")) == 1


@pytest.mark.ci
def test_kept_tpus_serve_the_same_command_again(cloud, capsys):
    cloud.plan(containers=[["running", "exited:1"], ["running", "exited:0"]])
    assert pretrain("--keep") == 1
    assert cloud.left() == ["fire-125m"] and "its TPUs are kept" in capsys.readouterr().out
    assert pretrain() == 0
    assert len(cloud.calls("queued-resources", "create")) == 1 and not cloud.left()


@pytest.mark.ci
def test_stopped_it_has_saved_and_goes_on_by_the_same_command(cloud, capsys):
    cloud.plan(containers=[["running"], ["running", "exited:0"]])
    assert pretrain("--detach") == 0
    assert "fire-125m continues without this command" in capsys.readouterr().out
    assert run("stop", "fire-125m") == 0
    assert run("status", "fire-125m") == 0
    assert "fire-125m.0: exited, exit code 5" in capsys.readouterr().out
    assert run("stop", "fire-125m") == 2
    assert "nothing is running on fire-125m" in capsys.readouterr().err
    assert pretrain() == 0 and not cloud.left()


@pytest.mark.ci
def test_logs_are_those_of_the_host(cloud, capfd):
    cloud.plan(containers=[["running"]])
    slices = "--cluster.accelerator=2xv4-16"
    assert pretrain(slices, "--gin.MeshShape.data=16", "--detach") == 0
    assert run("logs", "fire-125m", slices, "--host=3", "--lines=7", "--follow") == 0
    assert "step 100 of fire-125m-1.1" in capfd.readouterr().out
    assert "--tail=7" in cloud.calls("logs")[-1] and "--follow" in cloud.calls("logs")[-1]
    assert run("logs", "fire-125m", slices, "--host=4") == 2
    assert "fire-125m has hosts 0 to 3" in capfd.readouterr().err


def test_another_job_under_the_name_is_refused(cloud, capsys):
    cloud.plan(containers=[["running"]])
    assert pretrain("--detach") == 0
    assert pretrain("--gin.TRAIN_STEPS=900000") == 2
    assert "is already running other commands" in capsys.readouterr().err
    assert cloud.left() == ["fire-125m"]


def test_a_request_for_other_tpus_is_neither_followed_nor_deleted(cloud, capsys):
    cloud.plan(states=[["WAITING_FOR_RESOURCES", "ACTIVE"]], containers=[["running"]])
    assert pretrain("--detach") == 0
    slices = ("--cluster.accelerator=2xv4-16", "--gin.MeshShape.data=16")
    for other in (slices, ("--cluster.spot=false",)):
        assert pretrain(*other) == 2
        told = capsys.readouterr().err
        assert "fire-125m is a request for v4-8, spot, but --cluster.accelerator=" in told
        assert "tpu delete fire-125m" in told
    assert cloud.left() == ["fire-125m"] and not cloud.calls("queued-resources", "delete")


def test_a_request_that_failed_is_told(cloud, capsys):
    cloud.plan(states=[["FAILED"]], failure="no capacity before valid-until")
    assert pretrain() == 1
    assert "failed: no capacity before valid-until" in capsys.readouterr().err
    assert not cloud.left()


def test_status_explains_every_state_and_delete_clears_it(cloud, capsys):
    stray = "projects/my-project/locations/us-central2-b/nodes/forgotten"
    cloud.plan(
        states=[["FAILED"], ["SUSPENDED"], ["WAITING_FOR_RESOURCES"], ["ACTIVE"]],
        failure="There is no more capacity",
        strays=[{"name": stray, "acceleratorType": "v4-8", "state": "READY",
                 "createTime": "2026-11-22T09:00:00Z"},
                {"name": "nodes/suspended", "queuedResource": "queuedResources/suspended",
                 "state": "PREEMPTED", "createTime": "2026-01-02T03:00:00Z"}],
        objects={f"{GS}/active/metrics.jsonl": '{"step": 7, "loss": 9.5}\n'},
    )  # fmt: skip
    names = ("failed", "suspended", "waiting", "active")
    for name in names:
        assert run("create", name) == 0
        run("status", name)
    told = capsys.readouterr().out.split("billed project: my-project; zone: us-central2-b")[-1]
    for words in (
        "FAILED: There is no more capacity",
        f"`python -m tpu delete failed {' '.join(WHERE)}` removes the request",
        "SUSPENDED: preempted; the request still occupies quota and the name",
        "WAITING_FOR_RESOURCES: in the queue",
        "READY: a TPU VM without a queued resource",
        "`gcloud compute tpus tpu-vm delete forgotten --project=my-project --zone=us-central2-b`",
        "step 7, loss 9.500",
        "active.0: none",
    ):
        assert words in told, told
    assert "2026-01-02" not in told, "what is lost costs nothing"
    for name in names:
        assert run("delete", name) == 0
    assert not cloud.left()
    assert run("delete", "active") == 0
    assert "there is no such queued resource" in capsys.readouterr().out


@pytest.mark.parametrize(
    "plan, words",
    [
        ({"accounts": []}, "run `gcloud auth login`"),
        ({"buckets": {}}, "there is no bucket gs://my-bucket"),
        ({"images": []}, "build it with `python -m tpu image --cluster=v4_8 --cluster.project="),
        ({"fails": [*[""] * 6, "ERROR: (gcloud.x) RESOURCE_EXHAUSTED: Quota limit "
                    "'TPUV4sPreemptiblePodPerProjectPerZone' has been exceeded"]},
         "request quota for this accelerator in this zone"),
        ({"bucket_refuses": True}, "PermissionDenied: 403 --try_bucket=gs://my-bucket/runs"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_and_nothing_is_left(cloud, capsys, plan, words):
    cloud.plan(**plan)
    assert pretrain() != 0
    told = capsys.readouterr()
    assert words in told.err, told.err + told.out
    assert not cloud.left()


def test_a_bucket_that_may_not_be_viewed_may_be_used(cloud, capsys):
    denied = "HTTPError 403: me does not have storage.buckets.get access to my-bucket."
    cloud.plan(fails=["", "", f"ERROR: (gcloud.storage.buckets.describe) {denied}"])
    assert pretrain() == 0
    told = f"warning: the region of gs://my-bucket was not checked: {denied}\n"
    assert told in capsys.readouterr().err


def test_a_dry_run_prints_the_calls_and_makes_none(cloud, capsys):
    assert run("pretrain", "fire-125m", *EXPERIMENT, "--allow_config_change", "--dry_run") == 0
    said = capsys.readouterr().out
    assert "fire_lm preflight --slice=v4-8 --workdir=gs://my-bucket/runs/fire-125m" in said
    (compiled,) = (line for line in said.splitlines() if "fire_lm preflight" in line)
    assert compiled.endswith(" --allow_config_change")
    for call in (
        *("queued-resources create fire-125m", "queued-resources describe fire-125m"),
        *("tpu-vm describe fire-125m", "tpu-vm ssh fire-125m", "queued-resources delete fire-125m"),
    ):
        assert f"gcloud compute tpus {call}" in said
    assert not cloud.changes()


def test_a_path_that_still_needs_the_name_of_a_bucket_is_refused(cloud, capsys):
    assert run("pretrain", "fire-125m", "--gin_file=configs/runs/c4_125m.gin",
               "--gin_file=configs/positions/rope.gin", "--dry_run") == 2  # fmt: skip
    told = capsys.readouterr().err
    path = "gs://YOUR_BUCKET/tensorflow_datasets"
    assert f"--gin.DATA_DIR is {path}: replace YOUR_BUCKET by the name of your bucket" in told


def test_a_finetuning_is_launched_by_its_own_verb(cloud, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tpu.image.contains", lambda path: True)  # INIT_FROM is on this machine
    save(load_experiment(["configs/runs/quickstart.gin", "configs/positions/fire.gin"]), tmp_path)
    flags = ["--gin_file=configs/finetune/scrolls_qasper.gin", "--gin.DATA_DIR=gs://my-bucket/tasks",
             f"--gin.INIT_FROM={tmp_path}", "--dry_run"]  # fmt: skip
    assert run("finetune", "qasper", *flags) == 0
    said = capsys.readouterr().out
    assert "fire-lm finetune --workdir=gs://my-bucket/runs/qasper" in said.replace('", "', " ")
    assert run("pretrain", "qasper", *flags) == 2
    assert "use `python -m tpu finetune`" in capsys.readouterr().err
    model = ["--gin_file=configs/models/125m.gin", "--gin_file=configs/positions/fire.gin",
             "--gin.VOCABULARY=bytes", "--gin.VOCAB_SIZE=384", "--gin.INIT_FROM=''"]  # fmt: skip
    assert run("finetune", "qasper", *flags, *model) == 2
    assert "finetune needs --gin.INIT_FROM" in capsys.readouterr().err


TASK = "--gin_file=configs/tasks/scrolls_qasper.gin"
PI = "--also=--gin.ALiBi.interpolate=True"


def test_an_evaluation_is_a_job_of_its_own(cloud, capsys):
    """It runs next to a live run, with variants; its programs are first compiled for the slice."""
    asked = ["evaluate", "score-qasper", "qasper", "gs://other/runs/b@100,200", TASK, "--follow"]
    assert run(*asked, PI, "--lengths=512,8063", "--no_preflight", "--every=0") == 0
    (told,) = json.loads(cloud.started()[0][-1].removeprefix("--job="))
    assert told[:4] == ["fire-lm", "evaluate", f"{GS}/qasper", "gs://other/runs/b@100,200"]
    assert told[4:] == [TASK, "--follow", PI, "--lengths=512,8063"] and not cloud.left()
    assert any(part == "--folder=gs://my-bucket/evaluations/score-qasper" for part in
               cloud.started()[0])  # fmt: skip
    capsys.readouterr()
    assert run(*asked, PI, "--lengths=512,8063", "--gin.DATA_DIR=gs://d", "--dry_run") == 0
    lines = capsys.readouterr().out.splitlines()
    compiled = [line for line in lines if " -m fire_lm preflight " in line]
    ends = [
        f"--slice=v4-8 --workdir={run_} {TASK} --gin.DATA_DIR=gs://d "
        "'--gin.evaluate.lengths=(512, 8063)'"
        for run_ in (f"{GS}/qasper", "gs://other/runs/b")
    ]
    assert [line.endswith(end) for line, end in zip(compiled, ends, strict=True)] == [True, True]


@pytest.mark.parametrize(
    "flags, told",
    [
        ([], "a file of configs/tasks, such as --gin_file=configs/tasks/scrolls_qasper.gin"),
        ([TASK, "--output=gs://my-bucket/x"], "--output applies only to synthetic tasks"),
        ([TASK, "--folow"], "unknown argument --folow: did you mean --follow?"),
        ([TASK, "--lengths=0"], "'0' is not a whole number"),
    ],
)
def test_an_evaluation_that_cannot_be_launched(cloud, flags, told, capsys):
    assert run("evaluate", "score-qasper", "qasper", *flags) == 2
    assert told in capsys.readouterr().err and not cloud.calls()


def test_the_preflight_of_an_evaluation_stands_before_the_booking(cloud, monkeypatch, capsys):
    commands = []

    def done(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=len(commands) - 1)

    monkeypatch.setattr("tpu.launch.subprocess", SimpleNamespace(run=done))
    assert run("evaluate", "score", "a", "b", TASK) == 1
    assert [command[-2] for command in commands] == [f"--workdir={GS}/{name}" for name in "ab"]
    assert "no TPUs were requested" in capsys.readouterr().err and not cloud.calls("create")
