"""What a job reads: placeholders in paths, the run in INIT_FROM, gin files of another command."""

import argparse
import json
import os

import pytest
from tpu_cloud import EXPERIMENT, GS, WHERE, pretrain, run

from fire_lm import cli
from fire_lm.errors import RunFailed
from fire_lm.experiment import load_experiment
from tpu import __main__ as tpu
from tpu import bucket
from tpu.commands import Calls
from tpu.flags import folder_for_hosts, for_hosts
from tpu.launch import preflight_flags

SOURCE = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
QASPER = ["finetune", "qasper", "--gin_file=configs/finetune/scrolls_qasper.gin",
          "--gin.DATA_DIR=gs://my-bucket/tasks", "--gin.INIT_FROM=gs://my-bucket/runs/a@100",
          "--gin.MeshShape.data=-1", "--gin.MeshShape.fsdp=1", "--no_preflight"]  # fmt: skip
NO_LOGIN = [
    "ERROR: (gcloud.storage.ls) You do not currently have an active account selected.\n"
    "Please run:\n\n  $ gcloud auth login"
]
EXPECTED = {
    "PROJECT": "PROJECT by the id of your Google Cloud project",
    "BUCKET": "BUCKET by the name of your bucket",
    "REGION": "REGION by the region of your TPUs, such as us-central2",
}


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--cluster.project=PROJECT", ["PROJECT"]),
        ("--cluster.bucket=BUCKET", ["BUCKET"]),
        ("--cluster.bucket=gs://BUCKET/runs", ["BUCKET"]),
        ("--cluster.zone=REGION-b", ["REGION"]),
        ("--cluster.image=REGION-docker.pkg.dev/PROJECT/fire/fire_lm", ["REGION", "PROJECT"]),
        ("--cluster.service_account=me@PROJECT.iam.gserviceaccount.com", ["PROJECT"]),
        ("--gin.DATA_DIR=gs://BUCKET/tensorflow_datasets", ["BUCKET"]),
        ("--gin.INIT_FROM=gs://PROJECT-data/runs/a", ["PROJECT"]),
        ("--gin_file=gs://BUCKET/own.gin", ["BUCKET"]),
        ("--gin_search_paths=gs://BUCKET/gin", ["BUCKET"]),
    ],
)
def test_a_placeholder_is_refused_with_what_replaces_it(cloud, capsys, flag, words):
    """In the whole command, dry and real; as only one call is made, nothing is booked."""
    name, _, value = flag.partition("=")
    instead = ", and ".join(EXPECTED[word] for word in words)
    for dry in (["--dry_run"], []):
        assert pretrain(flag, *dry) == 2
        told = capsys.readouterr()
        assert told.err.strip().splitlines()[-1] == f"tpu: {name} is {value}: replace {instead}"
    assert not cloud.calls()


@pytest.mark.parametrize(
    "command, name",
    [
        (["status", "--cluster.project=PROJECT"], "--cluster.project"),
        (["image", "--cluster.image=REGION-docker.pkg.dev/p/f/fire_lm"], "--cluster.image"),
        (["sweep", "score", "gs://BUCKET/runs/a"], "RUN"),
        (["sweep", "score", "a", "b", "--output=gs://BUCKET/x"], "--output"),
        (["evaluate", "score", "a", "--gin.DATA_DIR=gs://BUCKET/x"], "--gin.DATA_DIR"),
        (["grid", "g", "--positions=fire", "--vary.DATA_DIR=gs://BUCKET/x"], "--vary.DATA_DIR"),
    ],
)
def test_every_verb_refuses_placeholders(cloud, capsys, command, name):
    assert run(*command, "--dry_run") == 2
    assert f"tpu: {name} is " in capsys.readouterr().err and not cloud.calls()


def test_a_local_grid_and_a_gin_file_refuse_placeholders_too(capsys):
    grid = ["grid", "g", "--local", "--positions=fire", "--dry_run"]
    files = ["--gin_file=configs/runs/c4_125m.gin", "--gin.VOCABULARY=bytes"]
    assert tpu.main([*grid, *files]) == 2
    path = "gs://YOUR_BUCKET/tensorflow_datasets"
    told = f"fire-seed0: --gin.DATA_DIR is {path}: replace YOUR_BUCKET by the name of your bucket"
    assert told in capsys.readouterr().err


def objects(**inputs) -> dict[str, str]:
    """Return a run in the bucket, as the stand-in keeps it."""
    text = load_experiment(SOURCE, ["VOCABULARY='data/spm.model'"]).text()
    return {f"{GS}/a/config.gin": text, f"{GS}/a/inputs.json": json.dumps(inputs)}


def test_the_run_in_init_from_is_read_with_gcloud(cloud, capsys):
    """Its vocabulary was a file of another machine, so that hosts read the run's copy."""
    cloud.plan(objects=objects(vocabulary="data/spm.model", copy="vocabulary/spm.model"))
    assert bucket.source(f"{GS}/a", Calls()).vocabulary == f"{GS}/a/vocabulary/spm.model"
    assert run(*QASPER, "--dry_run") == 0
    told = capsys.readouterr()
    assert "# qasper: 25,000 steps x " in told.out and "refuse" not in told.err
    listed = cloud.calls("storage", "ls")[-1]
    assert {"gs://my-bucket/tasks", f"{GS}/a/vocabulary/spm.model"} <= set(listed)


def test_without_a_login_a_dry_run_of_finetuning_warns_and_goes_on(cloud, capsys):
    cloud.plan(fails=NO_LOGIN * 99)
    assert run(*QASPER, "--dry_run") == 0
    told = capsys.readouterr()
    first, remedy = told.err.splitlines()[:2]
    assert first == (
        "tpu: a launch would refuse this: INIT_FROM is gs://my-bucket/runs/a, which cannot be "
        "read: You do not currently have an active account selected."
    )
    assert remedy == "run `gcloud auth login`, then rerun this command"
    assert told.err.count("gcloud auth login") == 1, "however many calls need it"
    assert (
        "\n# qasper: the cost is unknown: INIT_FROM was not read; `fire-lm preflight --slice="
        in (told.out)
    )
    assert "fire-lm" in told.out and "queued-resources create qasper" in told.out
    assert run(*QASPER) == 2
    assert "INIT_FROM is gs://my-bucket/runs/a, which cannot be read" in capsys.readouterr().err
    assert run(*QASPER, "--gin.DATA_DIR=data/tasks", "--dry_run") == 2, "local, whatever the run"
    assert "DATA_DIR is data/tasks, a path on this machine" in capsys.readouterr().err
    assert not cloud.changes()


def test_an_init_from_without_a_run_is_refused(cloud, capsys):
    assert run(*QASPER) == 2
    told = capsys.readouterr().err
    assert "INIT_FROM: gs://my-bucket/runs/a has no config.gin, so this run has not start" in told
    assert "correct it, or start that run first" in told and not cloud.changes()


@pytest.mark.parametrize(
    "verb, file, words",
    [
        ("finetune", "configs/tasks/scrolls_qasper.gin",
         "use --gin_file=configs/finetune/scrolls_qasper.gin instead of configs/tasks/"),
        ("finetune", "configs/tasks/gov_report_rouge.gin",
         "use --gin_file=configs/finetune/scrolls_gov_report.gin instead of configs/tasks/"),
        ("finetune", "configs/runs/c4_125m.gin", "add a file of configs/finetune, such as --gin"),
        ("evaluate", "configs/finetune/scrolls_qasper.gin",
         "use --gin_file=configs/tasks/scrolls_qasper.gin instead of configs/finetune/"),
        ("pretrain", "configs/finetune/scrolls_qasper.gin", "use `python -m tpu finetune`"),
    ],
)  # fmt: skip
def test_a_gin_file_of_another_command_is_answered_with_its_own(cloud, capsys, verb, file, words):
    more = ["a"] if verb == "evaluate" else ["--gin.INIT_FROM=gs://my-bucket/runs/a"]
    assert run(verb, "qasper", *more, f"--gin_file={file}", "--dry_run") == 2
    told = capsys.readouterr().err
    assert words in told and len(told.strip().splitlines()) <= 2 and not cloud.calls()


def test_what_cannot_be_read_is_told_in_a_line(cloud, capsys, monkeypatch):
    def fails(error: Exception):
        def fail(*_: object) -> None:
            raise error

        return fail

    class OfBucket(Exception):
        __module__ = "tensorflow.python"

    for error, words in (
        (OSError("the disk is gone"), "reading or writing failed: the disk is gone"),
        (OfBucket("401"), "401\nwithout credentials, run `gcloud auth application-default login`"),
        (RunFailed("gs://b/x\u001b cannot be read"), "gs://b/x\\x1b cannot be read"),
    ):
        monkeypatch.setattr("tpu.verbs.experiment_of", fails(error))
        assert pretrain("--dry_run") == 1
        assert words in capsys.readouterr().err
    (cloud.folder / "bin" / "gcloud").chmod(0o644)
    monkeypatch.setenv("PATH", str(cloud.folder / "bin"))
    assert run("status") == 2
    assert "gcloud cannot be run" in capsys.readouterr().err


def test_a_warning_of_a_dry_run_is_no_command(cloud, capsys):
    """Everything on stdout that is not a call is a comment, so that the output can be pasted."""
    cloud.plan(fails=["", "", "ERROR: (gcloud.x) HTTPError 403"])
    more = ["--cluster.far_bucket=true", "--cluster.zone=us-central2-b"]
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    for command in (["pretrain", "a", *EXPERIMENT], ["grid", "g", "--positions=fire", *flags],
                    ["sweep", "s", "a"]):  # fmt: skip
        assert tpu.main([*command, *WHERE, *more, "--dry_run"]) == 0
        for line in capsys.readouterr().out.splitlines():
            assert not line or line.startswith(("#", "gcloud ", "ssh-add ")) or "fire_lm" in line


def test_libraries_that_read_from_a_bucket_print_no_log_lines(cloud, capfd, monkeypatch):
    loaded: list[int] = []
    monkeypatch.setattr("tpu.flags.load_tensorflow", lambda: loaded.append(1))

    def fail(file: str) -> str:
        os.write(2, b"E0000 00:00:1795958838.3 1 google_auth_provider.cc:184] no credentials\n")
        raise RunFailed(f"{file} cannot be read: 401")

    monkeypatch.setattr("fire_lm.runs.inherited.file_sha256", fail)
    cloud.plan(objects=objects())
    pairs = ["--gin_file=configs/finetune/pairs.gin", "--gin.PAIRS=gs://my-bucket/pairs.jsonl"]
    source = f"--gin.INIT_FROM={GS}/a"
    assert run("finetune", "faq", *pairs, source, "--dry_run") == 1
    told = capfd.readouterr().err
    first, remedy = told.strip().splitlines()
    assert first == "tpu: gs://my-bucket/pairs.jsonl cannot be read: 401" and not loaded
    assert remedy == "without credentials, run `gcloud auth application-default login`"
    flag = argparse.Namespace(gin_search_paths="", local=False)
    assert for_hosts("gs://my-bucket/own.gin", flag) and folder_for_hosts("gs://my-bucket/gin")
    assert loaded == [1, 1]


def test_preflight_describes_the_job_that_hosts_run():
    """Values may be words of their own, and --pairs stands for a file and a binding."""
    flags = ["--import", "my.tasks", "--gin_file=a.gin", "--pairs=gs://b/faq.jsonl", "--debug"]
    passed = preflight_flags("gs://b/runs/a", [*flags, "--gin.SEED=1", "--allow_config_change"])
    hosts = cli.parse(["finetune", *flags, "--gin.SEED=1", "--workdir=gs://b/runs/a"])
    ours = cli.parse(["preflight", "--slice=v4-8", *passed])
    for name in ("gin_file", "bindings", "imports", "workdir"):
        assert getattr(ours, name) == getattr(hosts, name), name
    assert ours.allow_config_change
