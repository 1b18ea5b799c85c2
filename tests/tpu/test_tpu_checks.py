"""What a launch refuses before it asks Google Cloud for anything, and what a dry run says of it."""

import pytest
from tpu_cloud import EXPERIMENT, FILES, SITE, pretrain, run

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.hardware.slices import CHIPS
from tpu import bucket, checks, image, zones
from tpu.cluster import FOLDER, load
from tpu.commands import Calls
from tpu.flags import check_experiment, folder_for_hosts, run_to_start_from


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.py") if p.stem[0] in "vg"))
def test_the_zone_of_each_cluster_file_has_its_chips(name):
    checks.check_place(load(name, SITE))
    assert zones.ZONES.keys() == CHIPS.keys()


@pytest.mark.parametrize(
    "cluster, zone, words",
    [
        ("v4_8", "us-central2-a", "has no v4: did you mean us-central2-b?"),
        ("v4_8", "us-central1-a", "zones with v4: us-central2-b (as of 2026-11-29)"),
        ("v5e_8", "us-west4", "did you mean us-west4-a?"),
        ("gke_v5e_128", "europe-west4-a", "did you mean europe-west4-b?"),
    ],
)
def test_a_zone_without_the_accelerator_is_refused_with_those_that_have_it(cluster, zone, words):
    overrides = [*SITE, f"zone={zone}"]
    with pytest.raises(UserError) as told:
        checks.check_place(load(cluster, overrides))
    assert words in str(told.value) and len(str(told.value).splitlines()) == 2
    checks.check_place(load(cluster, [*overrides, "check_zone=false"]))


def test_a_zone_that_is_not_open_to_all_is_accepted_and_never_suggested():
    flags = [*SITE, "accelerator=v6e-8"]
    checks.check_place(load("v5e_8", [*flags, "zone=us-central1-ai1a"]))
    with pytest.raises(UserError) as told:
        checks.check_place(load("v5e_8", [*flags, "zone=us-central1-ai1"]))
    assert "us-central1-ai1a" not in str(told.value), "no source confirms it"
    for kind, restricted in zones.RESTRICTED.items():
        assert not set(restricted) & set(zones.ZONES[kind])


def test_an_image_that_hosts_cannot_pull_is_refused():
    with pytest.raises(UserError, match="fire_lm:1, which is not in a registry"):
        checks.check_place(load("v4_8", [*SITE, "image=fire_lm:1"]))


@pytest.mark.parametrize(
    "bindings, words",
    [
        (["DATA_DIR=data/c4"], "DATA_DIR is data/c4, a path on this machine: the hosts of v4-8 "
         "cannot read it\ncopy it to the bucket, and set --gin.DATA_DIR=gs://my-bucket/c4"),
        (["DATA_DIR=/mnt/c4"], "DATA_DIR is /mnt/c4, a path"),
        (["VOCABULARY=hf:gpt2"], "VOCABULARY is gpt2, a path"),
        (["INIT_FROM=runs/a@100"], "INIT_FROM is runs/a@100, a path"),
        (["MeshShape.data=128"], "needs 128 devices, but v4-8 (4 chips) has 4"),
        (["BATCH_SIZE=100"], "make BATCH_SIZE a multiple of 32"),
    ],
)  # fmt: skip
def test_a_run_that_hosts_could_not_start_is_refused(bindings, words):
    paths = ["DATA_DIR='gs://b/data'", "VOCABULARY='gs://b/spm.model'"]
    where = load("v4_8", SITE)
    checks.check_run(load_experiment(FILES, paths), where)
    with pytest.raises(UserError) as told:
        checks.check_run(load_experiment(FILES, [*paths, *bindings]), where)
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2


def test_a_module_that_hosts_do_not_have_is_refused(tmp_path, monkeypatch):
    """Preflight on this machine would find it."""
    (tmp_path / "my_own_package").mkdir()
    (tmp_path / "my_own_package" / "encoding.py").write_text(
        "import dataclasses\n\n\n@dataclasses.dataclass\nclass Mine:\n    x: int = 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    where = load("v4_8", [*SITE, "image=us-docker.pkg.dev/p/fire/fire_lm"])
    paths = ["DATA_DIR='gs://b/data'", "VOCABULARY='gs://b/spm.model'"]
    config = load_experiment(FILES, paths, imports=["my_own_package.encoding"])
    with pytest.raises(UserError, match="my_own_package.encoding is imported, but the hosts of v4"):
        checks.check_run(config, where)
    for module in (
        "fire_lm.positions.fire",
        "fire_lm.positions",
        "optax.contrib",
        "ml_collections",
    ):
        checks.check_importable(module, where)
    checks.check_importable("my_own_package.encoding", load("v4_8", SITE))  # an image of one's own
    assert "PYTHONPATH=/fire_lm" in (image.ROOT / "tpu" / "Dockerfile").read_text()


def test_a_path_in_the_image_can_be_read():
    assert image.contains("configs") and not image.contains(str(image.ROOT / "configs"))
    assert not image.contains(".venv") and not image.contains("../x") and not image.contains("none")
    where = load("v4_8", SITE)
    checks.check_bindings(["VOCABULARY='bytes'", "DATA_DIR='gs://b/c4'", "SEED=1"], where)
    with pytest.raises(UserError, match="DATA_DIR is data/c4"):
        checks.check_bindings(["DATA_DIR='data/c4'"], where)


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--gin.TRAIN_STEPS=0"], "train_steps is 0"),
        (["--gin.TRAIN_STEPS=10"], "warm-up of 715 steps does not fit into TRAIN_STEPS = 10"),
        (["--gin.DATA_DIR=''"], "DATA_DIR is empty"),
    ],
)
def test_what_pretrain_refuses_a_launch_refuses(flags, words):
    with pytest.raises(UserError, match=words):
        check_experiment([*EXPERIMENT, *flags])


@pytest.mark.parametrize("binding", ["INIT_FROM", "finetune.init_from"])
def test_the_source_of_finetuning_is_found_however_it_is_bound(binding):
    flags = ["--gin_file=configs/finetune/pairs.gin", f"--gin.{binding}=gs://b/run@5"]
    assert run_to_start_from(flags, "finetune") == "gs://b/run"


@pytest.mark.parametrize("folder, fits", [("configs", True), ("/tmp", False), (".venv", False)])
def test_gin_files_are_searched_for_where_hosts_have_them(folder, fits):
    if fits:
        assert folder_for_hosts(folder) == folder
        return
    with pytest.raises(UserError, match=f"the image does not contain {folder}"):
        folder_for_hosts(folder)


def test_a_bucket_elsewhere_is_refused_unless_its_cost_is_accepted(cloud):
    cloud.plan(buckets={"my-bucket": "EUROPE-WEST4"})
    words = "gs://my-bucket is in europe-west4, but the TPUs are in us-central2: every GB .*0.08"
    with pytest.raises(UserError, match=words):
        bucket.check(load("v4_8", SITE), Calls())
    accepted = load("v4_8", [*SITE, "far_bucket=true"])
    assert bucket.check(accepted, Calls()).startswith("warning: gs://my-bucket is in europe-west4")


def test_traffic_within_a_continent_costs_less():
    places = {"us-west1": 0.02, "nam4": 0.02, "northamerica-northeast1": 0.02, "eur4": 0.08}
    for place, price in places.items():
        assert f"about ${price:.2f} (" in bucket.far(place.upper(), "us-central2", "b"), place


def test_the_bucket_with_the_text_may_be_elsewhere_too(cloud, capsys):
    cloud.plan(buckets={"my-bucket": "US-CENTRAL2", "texts": "ASIA-EAST1"})
    flags = [flag for flag in EXPERIMENT if "DATA_DIR" not in flag]
    command = ["pretrain", "fire-125m", *flags, "--gin.DATA_DIR=gs://texts/c4"]
    assert run(*command) == 2
    assert "gs://texts is in asia-east1, but the TPUs are in us-central2" in capsys.readouterr().err
    assert run(*command, "--dry_run") == 0
    assert "would refuse this: gs://texts is in asia-east1" in capsys.readouterr().err


def test_a_path_in_a_bucket_where_there_is_nothing_is_refused(cloud):
    """One call asks for all paths; only if it fails is each asked for alone."""
    paths = {"gs://b/c4": "DATA_DIR", "gs://b/spm.model": "VOCABULARY"}
    assert bucket.check_there(paths, Calls()) == ""
    assert [call[3:] for call in cloud.calls("storage", "ls")] == [list(paths)]
    cloud.plan(missing=["gs://b/spm.model"])
    with pytest.raises(UserError, match="^VOCABULARY is gs://b/spm.model, but there is nothing at"):
        bucket.check_there(paths, Calls())
    cloud.plan(missing=[], forbidden=["gs://b/c4"])  # the hosts may be allowed to read it
    words = "warning: DATA_DIR, VOCABULARY were not checked: HTTPError 403"
    assert bucket.check_there(paths, Calls()).startswith(words)
    cloud.plan(fails=["ERROR: (gcloud.storage.ls) You do not currently have an active account."])
    remedy = "have an active account; run `gcloud auth login`, then rerun this command"
    assert bucket.check_there(paths, Calls()).endswith(remedy)


def test_a_context_that_still_has_a_placeholder_is_refused():
    with pytest.raises(
        UserError, match="PROJECT is a placeholder\n.*`kubectl config get-contexts`"
    ):
        checks.check_context(load("gke_v5e_128", SITE))
    checks.check_context(load("gke_v5e_128", [*SITE, "gke_context=gke_mine_us-west4_a"]))


def test_a_dry_run_says_what_a_launch_would_refuse(cloud, capsys, monkeypatch):
    """It prints the calls of the job nevertheless, makes only those that read, and succeeds."""
    cloud.plan(buckets={}, images=[], missing=["gs://my-bucket/data"])
    monkeypatch.setattr("tpu.image.has_tag", lambda image: False)
    monkeypatch.setattr("tpu.image.contains", lambda path: True)
    changed = {"status": "?? notes.txt", "rev-parse": "abc"}
    monkeypatch.setattr("tpu.image._git", lambda root, verb, *_: changed[verb])
    assert run("pretrain", "fire-125m", *EXPERIMENT, "--dry_run") == 0
    told = capsys.readouterr()
    for words in (
        "would refuse this: notes.txt is not committed",
        "would refuse this: there is no bucket gs://my-bucket",
        "would refuse this: DATA_DIR is gs://my-bucket/data, but there is nothing at this path",
        "would refuse this: there is no image us-docker.pkg.dev/my-project/fire/fire_lm:test:abc",
    ):
        assert told.err.count(words) == 1
    assert "queued-resources create fire-125m" in told.out and not cloud.changes()
    assert run("render", "fire-125m", *EXPERIMENT) == 0
    told = capsys.readouterr()
    assert "would refuse this: --cluster.gke_context is empty, so `pretrain` requests" in told.err
    assert "`kubectl config get-contexts` lists" in told.err and told.out.startswith("apiVersion")
    assert run("render", "fire-125m", *EXPERIMENT, "--cluster.gke_context=gke_PROJECT_a") == 0
    told = capsys.readouterr()
    assert "would refuse this: --cluster.gke_context is gke_PROJECT_a: PROJECT" in told.err
    assert "notes.txt is not committed" in told.err and told.out.startswith("apiVersion")
    cloud.plan(missing=[])
    assert pretrain() == 2
    assert "notes.txt is not committed" in capsys.readouterr().err and not cloud.changes()


def test_a_context_that_still_has_a_placeholder_is_refused_by_every_verb(cloud, capsys):
    for verb in ("status", "stop", "delete", "logs"):
        name = [] if verb == "status" else ["fire-125m"]
        assert run(verb, *name, "--cluster.gke_context=gke_PROJECT_a") == 2
        assert "PROJECT is a placeholder" in capsys.readouterr().err
    assert not cloud.calls()


def test_a_launch_refuses_before_it_asks_for_anything(cloud, capsys):
    """The whole command, dry and real; the functions are tested above."""
    for flag in ("--cluster.zone=us-central1-a", "--gin.INIT_FROM=runs/a", "--gin.BATCH_SIZE=9"):
        for dry in (["--dry_run"], []):
            assert pretrain(flag, *dry) == 2
            told = capsys.readouterr()
            assert len(told.err.strip().splitlines()) <= 2 and not told.out
    assert not cloud.calls()
