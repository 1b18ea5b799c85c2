"""Jobs on GKE: the manifest against schemas, a job's life against a stand-in for kubectl."""

import json

import kubernetes_validate
import pytest
import yaml
from tpu_cloud import EXPERIMENT, GS, SITE, pretrain, run

from fire_lm.errors import UserError
from tpu.cluster import load
from tpu.gke import manifest
from tpu.job import LONGEST_NAME, Job, check_name

CLUSTER = [
    *("--cluster.gke_context=gke_my-project_us-central2_fire", "--cluster.accelerator=v4-32")
]
# The fields in https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ that we could use.
JOBSET = {"replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy",
          "suspend", "coordinator", "managedBy", "ttlSecondsAfterFinished"}  # fmt: skip
REPLICATED_JOB = {"name", "groupName", "template", "replicas", "dependsOn"}
FAILURE_POLICY = {"maxRestarts", "restartStrategy", "rules"}
RULE = {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes",
           "MaxFailedIndexesExceeded", "PodFailurePolicy"}  # fmt: skip


def check_jobset(found: dict) -> None:
    """Check a JobSet against the documented fields, and its jobs against Kubernetes's schema."""
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    spec = found["spec"]
    assert set(spec) <= JOBSET
    assert set(spec["failurePolicy"]) <= FAILURE_POLICY
    for rule in spec["failurePolicy"]["rules"]:
        assert set(rule) <= RULE and rule["action"] in ACTIONS
        assert set(rule["onJobFailureReasons"]) <= REASONS
    for replicated in spec["replicatedJobs"]:
        assert set(replicated) <= REPLICATED_JOB
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": f"{found['metadata']['name']}-{replicated['name']}-0"},
            **replicated["template"],
        }
        kubernetes_validate.validate(job, "1.31", strict=True)


def a_manifest(accelerator: str, **fields) -> dict:
    where = load("v4_8", SITE)
    where.update({"accelerator": accelerator, **fields})
    commands = (("fire-lm", "pretrain", "--gin.X='a b'"),)
    return manifest(Job("fire-125m", commands, f"{GS}/fire-125m"), where)


@pytest.mark.parametrize(
    "accelerator, replicas, hosts, chips, topology",
    [
        ("v4-8", 1, 1, 4, "2x2x1"),
        ("v4-256", 1, 32, 4, "4x4x8"),
        ("2xv4-128", 2, 16, 4, "4x4x4"),
        ("v5e-8", 1, 1, 8, "2x4"),
        ("v5e-128", 1, 32, 4, "8x16"),
        ("v6e-256", 1, 64, 4, "16x16"),
    ],
)
def test_the_manifest_is_valid(accelerator, replicas, hosts, chips, topology):
    found = a_manifest(accelerator, service_account="trainer")
    check_jobset(found)
    (replicated,) = found["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert replicated["replicas"] == replicas
    assert job["parallelism"] == job["completions"] == hosts
    assert container["resources"]["limits"] == {"google.com/tpu": chips}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert json.loads(container["command"][-1].removeprefix("--job=")) == [
        ["fire-lm", "pretrain", "--gin.X='a b'"]
    ]


def test_the_check_of_manifests_sees_what_is_wrong():
    for where, name in ((("spec",), "maxRestart"), (("spec", "failurePolicy"), "restarts")):
        broken = a_manifest("v4-8")
        place = broken
        for key in where:
            place = place[key]
        place[name] = 1
        with pytest.raises(AssertionError):
            check_jobset(broken)
    broken = a_manifest("v4-8")
    broken["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["container"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        check_jobset(broken)


def test_the_codes_that_are_final_end_the_jobset():
    found = a_manifest("v4-8")
    (rule,) = found["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2, 4, 5]
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 2


def test_a_failed_pod_ends_its_job_and_jobset_starts_all_hosts_anew():
    """Kubernetes refuses `podFailurePolicy` unless pods are never restarted in place.

    With a backoff limit above 0, the job would restart one host, for which all others would wait in
    vain.
    """
    (replicated,) = a_manifest("v4-256")["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert "podFailurePolicy" in job and job["template"]["spec"]["restartPolicy"] == "Never"
    assert job["backoffLimit"] == 0


def test_render_prints_what_is_applied(cloud, capsys):
    assert run("render", "fire-125m", *EXPERIMENT, *CLUSTER) == 0
    rendered = yaml.safe_load(capsys.readouterr().out)
    check_jobset(rendered)
    cloud.plan(conditions=[["", "Completed"]])
    assert pretrain(*CLUSTER, "--detach") == 0
    assert cloud["jobsets"]["fire-125m"]["manifest"] == rendered


def test_a_run_from_nothing_to_its_end(cloud, capsys):
    cloud.plan(conditions=[["Pending", "", "", "Completed"]])
    assert pretrain(*CLUSTER) == 0
    said = capsys.readouterr().out
    assert "0 of 4 pods, 1 restarts; 0/4 nodes are available" in said
    assert "running: 4 of 4 pods" in said and "no pods are left" in said
    assert not cloud.left()


def test_a_failure_is_told_and_cleared(cloud, capsys):
    cloud.plan(conditions=[["", "Failed"]])
    assert pretrain(*CLUSTER) == 1
    told = capsys.readouterr()
    assert "jobset failed due to PodFailurePolicy" in told.err
    assert "step 100 of job/fire-125m-slice-0" in told.out
    assert not cloud.left()


def test_stop_status_and_the_same_command_again(cloud, capsys):
    cloud.plan(conditions=[[""], ["", "Completed"]])
    assert pretrain(*CLUSTER, "--detach") == 0
    assert run("stop", "fire-125m", *CLUSTER) == 0
    assert run("status", "fire-125m", *CLUSTER) == 0
    told = capsys.readouterr().out
    assert (
        "stopped by `python -m tpu stop`" in told and "fire-125m-slice-0-0-abcde: Running" in told
    )
    assert run("logs", "fire-125m", "--host=1", *CLUSTER) == 0
    assert pretrain(*CLUSTER) == 0 and not cloud.left()


def test_pods_are_numbered_by_slice_and_host(cloud, capfd):
    """By name, the pods 10 to 15 would follow pod 1."""
    where = [CLUSTER[0], "--cluster.accelerator=2xv4-128"]
    cloud.plan(conditions=[[""]])
    assert pretrain(*where, "--gin.pretrain.microbatches=1", "--detach") == 0
    for host, pod in ((3, "0-3"), (15, "0-15"), (18, "1-2")):
        assert run("logs", "fire-125m", f"--host={host}", *where) == 0
        assert f"of fire-125m-slice-{pod}-abcde\n" in capfd.readouterr().out
    assert run("logs", "fire-125m", "--host=32", *where) == 2
    assert "fire-125m has pods 0 to 31" in capfd.readouterr().err


def test_a_name_that_is_valid_leaves_room_for_the_names_of_pods(cloud):
    longest = check_name("a" * LONGEST_NAME)
    where = [CLUSTER[0], "--cluster.accelerator=2xv4-128", "--no_preflight", "--detach"]
    cloud.plan(conditions=[[""]])
    one = "--gin.pretrain.microbatches=1"
    assert run("pretrain", longest, *EXPERIMENT, one, *where) == 0
    with pytest.raises(UserError, match=f"use at most {LONGEST_NAME} lower-case"):
        check_name(longest + "a")
    # Jobs of older versions may have longer names.
    assert run("delete", longest + "aaaaa", *where[:2]) == 0


def test_what_another_job_left_is_cleared(cloud):
    """The earlier job's completion must not count as the completion of this one."""
    cloud.plan(conditions=[["", "", "Completed"], ["", "Completed"]])
    assert pretrain(*CLUSTER, "--detach") == 0
    assert pretrain(*CLUSTER, "--gin.TRAIN_STEPS=900000") == 2, "it still runs"
    assert pretrain(*CLUSTER, "--gin.TRAIN_STEPS=900000") == 0
    assert len(cloud.calls("apply", "--filename=-")) == 2 and not cloud.left()


@pytest.mark.parametrize(
    "code, words, exit_code", [(2, "a configuration error", 2), (4, "not finite", 1)]
)
def test_exit_codes_of_pods_are_told(cloud, capsys, code, words, exit_code):
    cloud.plan(conditions=[["", "Failed"]], pod_code=code)
    assert pretrain(*CLUSTER) == exit_code
    assert words in capsys.readouterr().err


def test_create_and_setup_are_for_queued_resources(cloud, capsys):
    assert run("create", "x", *CLUSTER) == 2 and run("setup", "x", *CLUSTER) == 2
    assert (
        "`create` applies only to queued resources" in capsys.readouterr().err and not cloud.calls()
    )


def test_another_job_under_the_name_is_refused(cloud, capsys):
    cloud.plan(conditions=[[""]])
    assert pretrain(*CLUSTER, "--detach") == 0
    assert pretrain(*CLUSTER, "--gin.TRAIN_STEPS=900000") == 2
    assert "is already running other commands" in capsys.readouterr().err
    assert pretrain(*CLUSTER, "--cluster.spot=false") == 2
    assert "fire-125m is for other TPUs (1 x cloud.google.com/gke-spot" in capsys.readouterr().err
    assert cloud.left() == ["fire-125m"]
