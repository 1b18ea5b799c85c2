"""The launcher's command line and its cluster files: what is refused, and with which message."""

import json
import re
import signal
import threading

import pytest
from tpu_cloud import EXPERIMENT, WHERE, pretrain, run

from fire_lm.errors import UserError
from fire_lm.hardware.slices import parse_slice
from tpu import __main__ as tpu
from tpu import image
from tpu.bucket import far
from tpu.cluster import FOLDER, base, load
from tpu.grid import arm_job, arms
from tpu.job import LONGEST_NAME, Stage, check_name
from tpu.queued import QueuedResources

SITE = ["project=p", "bucket=gs://b/", "image=i:1"]


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.py") if p.stem[0] in "vg"))
def test_each_cluster_file_is_of_the_slice_that_it_is_named_after(name):
    found = load(name, SITE)
    assert parse_slice(name.removeprefix("gke_").replace("_", "-")) == parse_slice(
        found.accelerator
    )
    assert found.bucket == "b" and found.is_locked and bool(found.gke_context) == ("gke" in name)


def test_a_cluster_is_locked_and_holds_nothing_of_the_experiment():
    with pytest.raises(AttributeError):
        base().batch_size = 8
    gin = {"TRAIN_STEPS", "BATCH_SIZE", "POSITION", "DATA_DIR", "SEED"}
    assert not gin & {field.upper() for field in base()}


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["zon=x"], "did you mean zone?"),
        (["spot=perhaps"], "set it to true or false"),
        (["retries=many"], "is not a whole number"),
        (["accelerator=v4-7"], "--cluster.accelerator=v4-7: v4 has no such slice"),
        (["bucket=my bucket"], "is not a valid bucket name"),
        (["image="], "does not define: image"),
        *(([f"price_per_chip_hour={price}"], "must be a number of 0 or more")
          for price in ("-1", "nan", "free")),
        (["accelerator=2xv4-16", "min_slices=2"], "must be less than the 2 of 2xv4-16, or 0"),
        (["min_slices=1"], "must be less than the 1 of v4-8, or 0"),
        (["accelerator=2xv4-16", "min_slices=1", "gke_context=x"], "only to queued resources"),
    ],
)  # fmt: skip
def test_a_slip_in_an_override_is_told(overrides, words):
    with pytest.raises(UserError, match=re.escape(words)):
        load("v4_8", [*SITE, *overrides])


def test_overrides_have_the_types_of_their_fields():
    given = ("spot=false", "retries=3", "zone=us-west1-a", "price_per_chip_hour=3.22")
    found = load("v4_8", [*SITE, *given])
    assert (found.spot, found.retries, found.zone) == (False, 3, "us-west1-a")
    assert found.price_per_chip_hour == 3.22


def test_a_cluster_that_is_not_there_is_told_with_those_that_are(capsys):
    assert tpu.main(["status", "--cluster=v4_9"]) == 2
    assert "pass a file, or one of gke_v5e_128, v4_256" in capsys.readouterr().err
    assert tpu.main(["status"]) == 2
    assert "status needs --cluster=NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, words",
    [
        ("def get_config(:", "cannot be read: SyntaxError"),
        ("x = 1", "has no attribute 'get_config'"),
        ("from tpu.cluster import base\n\ndef get_config():\n    c = base()\n    c.zon = 'a'\n",
         "zon"),
        ("def get_config():\n    return 1 / 0\n", "division by zero"),
        ("def get_config():\n    pass\n", "get_config returns NoneType: it must return a "),
        ("def get_config():\n    return {'zone': 'a'}\n", "get_config returns dict: it must re"),
    ],
)  # fmt: skip
def test_a_cluster_file_with_an_error_is_told(tmp_path, text, words):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(UserError, match=words) as told:
        load(str(tmp_path / "own.py"), SITE)
    assert "own.py" in str(told.value) and len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["a;rm -rf", "$(id)", "Fire_125M", "1b", "a" * 60, "x-", "", "é"])
def test_names_that_are_none_for_a_tpu(name):
    with pytest.raises(UserError, match="cannot be the name of a run"):
        check_name(name)


def test_a_name_that_would_do_is_proposed(cloud, capsys):
    assert run("pretrain", "Fire_125M; rm -rf /", *EXPERIMENT, "--no_preflight") == 2
    assert "fire-125m-rm-rf would be valid" in capsys.readouterr().err
    assert not cloud.calls()


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--gin.BATCH_SIZ=8"], "BATCH_SIZE"),
        (["--dryrun"], "did you mean --dry_run?"),
        (["--workdir=gs://other/run"], "omit --workdir"),
        (["--gin_file=/etc/hosts"], "so the image does not contain it"),
        (["--gin_file=.venv/pyvenv.cfg"], "is not in the image, which leaves out what git ignores"),
        (["--cluster.zone"], "--cluster.zone has no value"),
        (["--vary.SEED=1"], "takes no --vary. flags"),
        (["--every=-1"], "is not a number of seconds"),
    ],
)
def test_a_slip_is_told_before_anything_is_booked(cloud, capsys, flags, words):
    assert pretrain(*flags) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) <= 3
    assert not cloud.calls()


def test_gcloud_missing_is_told_with_how_to_install_it(cloud, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert pretrain() == 2
    assert "gcloud is not on PATH" in capsys.readouterr().err


def test_the_image_is_that_of_the_commit(tmp_path):
    where = load("v4_8", [*SITE, "image=us-docker.pkg.dev/p/fire/fire_lm"])
    for command in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        image._git(tmp_path, *command)
    (tmp_path / "file").write_text("1")
    image._git(tmp_path, "add", "file")
    image._git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "file").write_text("2")
    with pytest.raises(UserError, match="file is not committed"):
        image.check_committed(where, tmp_path)
    image.check_committed(load("v4_8", SITE), tmp_path)  # has a tag
    image._git(tmp_path, "commit", "-qam", "two")
    commit = image._git(tmp_path, "rev-parse", "HEAD")
    assert image.tagged(where, tmp_path) == f"{where.image}:{commit[:12]}"
    for refuses in (image.tagged, image.check_committed):
        with pytest.raises(UserError, match="is not a git checkout"):
            refuses(where, tmp_path.parent)
    assert image.tagged(load("v4_8", SITE)) == "i:1"
    (tmp_path / "tpu" / "clusters").mkdir(parents=True)
    (tmp_path / "tpu" / "clusters" / "site.py").write_text("")  # the hosts do not read it
    image.check_committed(where, tmp_path)
    (tmp_path / "new").write_text("")
    with pytest.raises(UserError, match="new is not committed"):
        image.check_committed(where, tmp_path)


def test_where_a_bucket_is():
    assert not far("US-CENTRAL2", "us-central2", "b")
    assert "$0.02" in far("US-EAST1", "us-central2", "b")
    assert "$0.02" in far("US", "us-central2", "b")
    assert "$0.08" in far("ASIA", "us-central2", "b")


def test_the_arms_of_a_grid():
    found = arms(
        ["fire", "kerple_log"], [0, 1], {"BATCH_SIZE": ["16", "32"], "TRAIN_LENGTH": ["64"]}
    )
    assert len(found) == 8
    assert found[0].name == "fire-seed0-batch-size-16-train-length-64"
    assert found[-1].flags == (
        "--gin_file=configs/positions/kerple_log.gin",
        "--gin.SEED=1",
        "--gin.BATCH_SIZE=32",
        "--gin.TRAIN_LENGTH=64",
    )
    with pytest.raises(UserError, match="did you mean kerple_log?"):
        arms(["kerple_lag"], [0], {})
    with pytest.raises(UserError, match="two arms of the grid would have the name"):
        arms(["fire"], [0], {"BATCH_SIZE": ["16", "1.6", "1-6"]})
    with pytest.raises(UserError, match=r"--vary.AdamW.learning_rate: 1e-3 and 0.001 are the same"):
        arms(["fire"], [0], {"AdamW.learning_rate": ["1e-3", "2e-3", "0.001"]})
    assert len(arms(["fire"], [0], {"FIRE.learn_L": ["1", "True"], "WHO": ["%A", "%B", "c"]})) == 6


def test_arms_that_differ_in_files():
    files = ["", "configs/log_n/training.gin,configs/resampling/random.gin"]
    without, both = arms(["fire"], [0], {"gin_file": files})
    assert without.name == "fire-seed0" and len(without.flags) == 2
    assert both.name == "fire-seed0-log-n-training-resampling-random"
    assert both.flags[2:] == (
        "--gin_file=configs/log_n/training.gin",
        "--gin_file=configs/resampling/random.gin",
    )


def test_long_names_of_arms_are_cut_for_their_tpus():
    (arm,) = arms(
        ["kerple_log"], [0], {"AdamW.learning_rate": ["0.0001"], "TRAIN_LENGTH": ["1024"]}
    )
    job = arm_job(arm, "a-study-of-much", "gs://b/runs/a-study-of-much", [], ["fire-lm"], ["sweep"])
    assert len(job.name) == LONGEST_NAME and job.name.startswith("a-study-of-much-kerple-log-")
    assert job.folder.endswith("/kerple-log-seed0-adamw-learning-rate-0-0001-train-length-1024")


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--local", *WHERE], "exclude each other"),
        (["--local", "--no_preflight"], "have no effect with --local"),
        (["--positions=fir", "--local"], "there is no configs/positions/fir.gin; did you mean"),
        (["--local", "--seeds=a"], "is not a list of whole numbers"),
        (["--local", "--at_once=0"], "is not a whole number of 1 or more"),
        (["--local", "--sequences=8"], "--sequences applies only to synthetic tasks"),
        (["--vary.gin_file=/tmp/x.gin", *WHERE], "is outside /"),
        ([], "grid needs --cluster=NAME"),
    ],
)
def test_slips_in_a_grid(cloud, capsys, flags, words):
    run_file = "--gin_file=configs/runs/quickstart.gin"
    chosen = [] if any("positions" in flag for flag in flags) else ["--positions=fire"]
    assert tpu.main(["grid", "mini", *chosen, run_file, *flags]) == 2
    assert words in capsys.readouterr().err and not cloud.calls()


def test_a_grid_of_a_synthetic_task_needs_slices_of_one_host(cloud, capsys):
    asked = ["grid", "parity", "--positions=nope", "--cluster=v4_256", "--cluster.bucket=b"]
    more = ["--cluster.project=p", "--cluster.image=i"]
    assert tpu.main([*asked, *more, "--gin_file=configs/synthetic/parity_check.gin"]) == 2
    assert "evaluated on one host, but v4-256 has several" in capsys.readouterr().err
    assert not cloud.calls()


def test_a_grid_of_a_synthetic_task_is_evaluated(capsys):
    task = "configs/synthetic/parity_check.gin"
    asked = ["grid", "parity", "--local", "--dry_run", "--positions=nope", "--sequences=8"]
    files = ["", "configs/resampling/random_2048.gin"]
    varied = [f"--vary.gin_file={task},{file}".rstrip(",") for file in files]
    assert tpu.main([*asked, *varied]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [line.split(" -m fire_lm ")[1].split()[:2] for line in lines[1::2]] == [
        ["evaluate", "--sequences=8"]
    ] * 2
    assert "--gin_file=configs/resampling/random_2048.gin" in lines[2] and task in lines[0]
    text = ["--vary.gin_file=configs/runs/quickstart.gin", *varied]
    assert tpu.main([*asked, *text]) == 2
    assert "some arms train on text and some on a synthetic task" in capsys.readouterr().err


def test_hosts_of_a_slice():
    for name in ("v4-16", "v5e-1", "v5e-8", "v5e-16", "v6e-8"):
        described = parse_slice(name).devices()
        assert len({one.process_index for one in described}) == parse_slice(name).hosts
    assert [parse_slice(s).hosts for s in ("v4-8", "v4-256", "2xv4-128", "v5e-8", "v5e-16")] == [
        *(1, 32, 32, 1, 4)
    ]


@pytest.mark.ci
def test_a_grid_on_a_cluster_is_a_job_for_each_arm(cloud, capsys, monkeypatch):
    cloud.plan(states=[["ACTIVE"], ["FAILED"], ["ACTIVE"]], failure="no capacity")
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    more = [
        "--positions=rope,alibi",
        "--seeds=0",
        "--no_preflight",
        "--at_once=1",
        "--every=0",
        *flags,
    ]
    combined = []
    monkeypatch.setattr(
        "tpu.grid_verb._combine",
        lambda scoring, jobs, output: combined.append(
            (scoring, [job.folder for job in jobs], output)
        ),
    )
    assert run("grid", "study", *more) == 1
    told = capsys.readouterr()
    assert "1 of 2 arms failed" in told.err and "alibi-seed0: study-alibi-seed0: failed" in told.err
    assert "[2/2] alibi-seed0: FAILED" in told.out and not cloud.left()
    arms = [f"gs://my-bucket/runs/study/{name}-seed0" for name in ("rope", "alibi")]
    assert combined == [(["sweep"], arms[:1], "runs/study")], "without the one that failed"
    assert run("grid", "study", *more) == 0  # only the one that has not finished
    created = [call[5] for call in cloud.calls("queued-resources", "create")]
    assert created == ["study-rope-seed0", "study-alibi-seed0", "study-alibi-seed0"]
    assert combined[1:] == [(["sweep"], arms, "runs/study")]
    ran = cloud.calls("run", "--detach")[0][-1]
    assert '"fire-lm", "sweep", "gs://my-bucket/runs/study/rope-seed0"' in ran


@pytest.mark.ci
def test_ctrl_c_in_a_grid_books_nothing_more_and_the_next_call_clears_up(
    cloud, capsys, monkeypatch
):
    """Arms continue; the same command releases the TPUs of those that end meanwhile."""
    cloud.plan(containers=[["running"] * 6 + ["exited:0"]])
    flags = [flag for flag in EXPERIMENT if "positions" not in flag]
    more = ["--positions=rope,alibi,fire", "--no_preflight", "--at_once=1", *flags]
    monkeypatch.setattr("tpu.grid_verb._combine", lambda *where: None)
    look = QueuedResources.look
    # A shell that starts pytest in the background has SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(self, job):
        state = look(self, job)
        if state.stage is Stage.RUNNING:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return state

    with monkeypatch.context() as patch:
        patch.setattr(QueuedResources, "look", interrupt)
        assert run("grid", "study", "--every=0.2", *more) == 130
    signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().out
    assert (
        "study-rope-seed0 continues without this command" in said and "alibi-seed0  waiting" in said
    )
    assert cloud.left() == ["study-rope-seed0"]
    assert run("grid", "study", "--every=0", *more) == 0
    assert not cloud.left() and len(cloud.calls("queued-resources", "create")) == 3


def test_a_sweep_is_a_job_of_its_own(cloud, capsys):
    flags = ["--gin.EVAL_LENGTHS=512,8192", "fire-125m@1000", "gs://other/runs/rope", "--every=0"]
    assert run("sweep", "score", *flags) == 0
    (told,) = json.loads(cloud.calls("run", "--detach")[0][-1].removeprefix("--job="))
    assert told == [
        *("fire-lm", "sweep", "gs://my-bucket/runs/fire-125m@1000", "gs://other/runs/rope"),
        *("--output=gs://my-bucket/sweeps/score", "--gin.EVAL_LENGTHS=512,8192"),
    ]
    assert not cloud.left()
    assert run("sweep", "score", *flags) == 0  # there may be newer checkpoints
    assert len(cloud.calls("queued-resources", "create")) == 2
    assert run("sweep", "score", "fire-125m", "--dryrun") == 2
    assert "did you mean --dry_run?" in capsys.readouterr().err
    assert run("sweep", "score", "fire-125m", "--output=here") == 2
    assert "would be lost with the TPUs" in capsys.readouterr().err
