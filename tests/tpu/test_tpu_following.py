"""Following a job on queued resources: temporary trouble, Ctrl-C, and lost answers."""

from types import SimpleNamespace

import pytest
from tpu_cloud import EXPERIMENT, GS, pretrain, run

from tpu import bucket
from tpu.commands import CallFailed, Refused
from tpu.queued import QueuedResources


@pytest.mark.parametrize(
    "words",
    [
        "There was a problem refreshing your current auth tokens: no route",
        *(
            pytest.param(words, marks=pytest.mark.ci)
            for words in (
                "RESOURCE_EXHAUSTED: Quota exceeded for 'Requests per minute'",
                "PERMISSION_DENIED: for a moment",
            )
        ),
    ],
)
def test_trouble_under_way_does_not_end_the_follower(cloud, capsys, words):
    """Calls 1 to 11 precede the start of the job; the TPUs exist afterwards."""
    cloud.plan(
        fails=[""] * 17 + [f"ERROR: (gcloud.x) {words}"] * 3,
        containers=[["running"] * 8 + ["exited:0"]],
    )
    assert pretrain() == 0
    assert "trying again: " in capsys.readouterr().out and not cloud.left()


@pytest.mark.ci
def test_whatever_ends_the_follower_it_says_what_goes_on(cloud, capsys):
    cloud.plan(fails=[""] * 17 + ["ERROR: gcloud crashed"] * 99, containers=[["running"]])
    assert pretrain() == 1
    assert "fire-125m continues without this command, and still costs money" in (
        capsys.readouterr().out
    )
    assert cloud.left() == ["fire-125m"]


@pytest.mark.ci
def test_tpus_that_cannot_be_given_back_are_told_loudly(cloud, capsys, monkeypatch):
    def refuse(self, name):
        raise Refused("403: not yours")

    with monkeypatch.context() as patch:
        patch.setattr(QueuedResources, "delete", refuse)
        assert pretrain() == 1
    told = capsys.readouterr()
    assert "ITS TPUS MAY STILL EXIST" in told.err and "to release its TPUs: 403" in told.out
    assert "fire-125m continues without this command" in told.out
    assert pretrain() == 0 and not cloud.left(), "the same command tries again"


@pytest.mark.parametrize(
    "step", ["launch", *(pytest.param(step, marks=pytest.mark.ci) for step in ("create", "delete"))]
)
def test_ctrl_c_says_what_goes_on(cloud, capsys, monkeypatch, step):
    """The message also comes when it is uncertain whether the resource exists."""
    whole = getattr(QueuedResources, step)

    def interrupted(self, what):
        if step == "create":
            whole(self, what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(QueuedResources, step, interrupted)
        assert pretrain() == 130
    assert "fire-125m continues without this command" in capsys.readouterr().out
    assert cloud.left() == ["fire-125m"]
    assert pretrain() == 0 and not cloud.left()


@pytest.mark.ci
def test_an_answer_to_delete_that_gets_lost(cloud, capsys, monkeypatch):
    """Preempted TPUs are requested again, although the answer to their deletion was lost."""
    cloud.plan(states=[["ACTIVE", "SUSPENDED"], ["ACTIVE"]])
    delete, calls = QueuedResources.delete, iter(range(9))

    def lost(self, name):
        told = delete(self, name)
        if next(calls) == 0:
            raise CallFailed("no answer")
        return told

    monkeypatch.setattr(QueuedResources, "delete", lost)
    assert pretrain() == 0 and not cloud.left()
    assert len(cloud.calls("queued-resources", "create")) == 2


@pytest.mark.ci
def test_deleted_and_at_once_asked_for_again(cloud):
    cloud.plan(states=[["DELETING"], ["ACTIVE"]])
    assert run("create", "fire-125m") == 0
    look, looks = QueuedResources.look, iter(range(99))

    def gone_at_the_third(self, job):
        if next(looks) == 2:
            self.delete(job.name)
        return look(self, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueuedResources, "look", gone_at_the_third)
        assert pretrain() == 0
    assert len(cloud.calls("queued-resources", "create")) == 2 and not cloud.left()


@pytest.mark.parametrize("code", [2, pytest.param(4, marks=pytest.mark.ci)])
def test_what_would_fail_again_is_not_started_again_by_the_same_command(cloud, capsys, code):
    """It ended while nobody followed: this is reported, and its TPUs are released.

    After that, it may start again.
    """
    cloud.plan(containers=[["running"] * 2 + [f"exited:{code}"], ["running", "exited:0"]])
    assert pretrain("--detach") == 0
    assert pretrain() == (2 if code == 2 else 1)
    assert "step 100 of fire-125m.0" in capsys.readouterr().out
    assert len(cloud.started()) == 1 and not cloud.left()
    assert pretrain() == 0


def test_an_error_of_a_create_that_cannot_work_is_told_at_once(cloud, capsys):
    cloud.plan(fails=[""] * 6 + ["ERROR: (gcloud.x) INVALID_ARGUMENT: no v4-8 in this zone"])
    assert pretrain() == 2
    told = capsys.readouterr()
    assert "no v4-8 in this zone" in told.err and "check --cluster.accelerator" in told.err
    assert "continues without" not in told.out and not cloud.calls("create", "fire-125m")[1:]


def test_preflight_stands_before_the_booking(cloud, capsys, monkeypatch):
    codes = iter([1, 2, 0])
    commands = []

    class Done:
        def __init__(self, command, **_):
            commands.append(command)
            self.returncode = next(codes)

    arguments = ("pretrain", "fire-125m", *EXPERIMENT, "--every=0")
    with monkeypatch.context() as patch:
        patch.setattr("tpu.launch.subprocess", SimpleNamespace(run=Done))
        assert run(*arguments) == 1 and run(*arguments) == 2
        assert (
            "preflight ended with exit code 1, so no TPUs were requested" in capsys.readouterr().err
        )
        assert not cloud.calls("create") and "--slice=v4-8" in commands[0]
        assert f"--workdir={GS}/fire-125m" in commands[0] and EXPERIMENT[-1] in commands[0]
        assert run(*arguments) == 0
    assert not cloud.left()


@pytest.mark.ci
def test_what_somebody_deleted_is_not_booked_again(cloud, capsys):
    cloud.plan(containers=[["running"]])
    look, looks = QueuedResources.look, iter(range(99))

    def deleted_at_the_fourth(self, job):
        if next(looks) == 3:
            self.delete(job.name)
        return look(self, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueuedResources, "look", deleted_at_the_fourth)
        assert pretrain() == 1
    assert "was deleted by somebody else; rerun the command" in capsys.readouterr().err
    assert len(cloud.calls("queued-resources", "create")) == 1 and not cloud.left()


@pytest.mark.ci
def test_a_job_that_only_its_ssh_fails_is_left_alone(cloud, capsys):
    """Its metrics advance, so the job is healthy, whatever is wrong with the connection."""
    cloud.plan(containers=[["running"]])
    assert pretrain("--detach") == 0
    steps = iter(range(100))
    cloud.plan(fails=[], mute=[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpu.bucket.progress", lambda workdir, calls: f"step {min(next(steps), 25)}")
        assert pretrain("--cluster.retries=0") == 1
    said = capsys.readouterr().out
    assert "the hosts do not respond: 0 of 1 hosts respond; step 25" in said


def test_lines_that_are_not_of_a_step_are_no_progress(tmp_path):
    """A full disk damages lines, and other programs write lines of their own."""
    step = b'{"step": 20, "loss": 2.5, "tokens_per_second": 1000.0}'
    damaged = b'{"step": 30, {"step": 40}'
    others = b'{"step": 3, "loss": null}', b'{"step": 3, "tokens_per_second": "x"}'
    assert [bucket.in_words(line) for line in others] == ["step 3", "step 3"]
    for more in (damaged, b'{"epoch": 3}', b'{"step": null}', b'"step": 10, "loss": 3.0}', b"\xff"):
        (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([more, step, more]))
        found = bucket.last_step(tmp_path / "metrics.jsonl")
        assert found == "step 20, loss 2.500, 1,000 tokens/s"
        assert bucket.in_words(more) == ""


def test_several_hosts_need_a_key_in_ssh_agent(cloud, capsys):
    (cloud.folder / "bin" / "ssh-add").write_text("#!/bin/sh\necho no identities >&2\nexit 1\n")
    assert pretrain("--cluster.accelerator=v4-32") == 2
    assert "ssh-agent has no key" in capsys.readouterr().err and not cloud.calls("create")


@pytest.mark.ci
def test_a_network_that_fails_for_a_while_is_waited_for(cloud, capsys):
    cloud.plan(fails=[""] * 6 + ["ERROR: gcloud crashed (ConnectionError): no route to host"] * 3)
    assert pretrain() == 0
    assert "trying again: gcloud crashed" in capsys.readouterr().out and not cloud.left()
