"""The command line: exit codes, plain messages, and a sweep of runs that it trained itself."""

import importlib
import shutil
from pathlib import Path

import pytest
from etils import epath

from fire_lm import __version__
from fire_lm.cli import corpus, main
from fire_lm.data.corpora.embedded import write_corpus
from fire_lm.errors import RunFailed
from fire_lm.results import PositionLoss, SweepRow, read_table

evaluation = importlib.import_module("fire_lm.measures.length_sweep")

QUICKSTART = ("--gin_file=configs/runs/quickstart.gin", "--gin_file=configs/positions/fire.gin")
DRY_RUN = ("pretrain", "--dry_run", *QUICKSTART)


def test_help_and_version_are_no_failure(capsys):
    for argument in ("--help", "--version"):
        with pytest.raises(SystemExit) as ending:
            main([argument])
        assert ending.value.code == 0
    shown = capsys.readouterr().out
    assert __version__ in shown and all(verb in shown for verb in ("pretrain", "sweep", "corpus"))


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "verb"),
        (["pretrian"], "did you mean pretrain?"),
        (["pretrain", *QUICKSTART, "--wrokdir=x"], "did you mean --workdir?"),
        (["pretrain", *QUICKSTART, "--dry-run"], "did you mean --dry_run?"),
        (["sweep", "runs", "--ouput=x"], "did you mean --output?"),
        (["sweep"], "RUN[@STEPS]"),
        (["corpus"], "--data_dir"),
        (["corpus", "--data_dir=x", "--gin.SEED=1"], "no --gin. bindings"),
        (["corpus", "--from=nowhere", "check", "--data_dir=x"], "--from before `check`"),
        (
            ["corpus", "--validation_percent=0", "vocab", "--data_dir=x", "--output=y"],
            "before `vocab`",
        ),
        (["corpus", "--data_dir=x", "check", "--data_dir=y"], "--data_dir before `check`"),
        (
            ["corpus", "--runner=x", "blocks", "--data_dir=y", "--output=z"],
            "--runner before `blocks`",
        ),
        (
            ["corpus", "--data_dir=x", "--validation_percent=0"],
            "--validation_percent applies only to",
        ),
        (["corpus", "--data_dir=x", "--name=y"], "--name applies only to your documents"),
        (["corpus", "--data_dir=x", "--from=", "--name=y"], "--from is empty"),
        (["corpus", "blocks", "--data_dir=x", "--output="], "--output is empty"),
        (
            ["corpus", "blocks", "--data_dir=x", "--output=y", "--splits="],
            "--splits: a name or number is empty",
        ),
        (
            ["corpus", "tasks", "--suite=scrolls", "--data_dir=x", "--source="],
            "--source is empty",
        ),
        (["pretrain", *QUICKSTART, "--imports=x"], "did you mean --import?"),
        (["pretrain", *QUICKSTART, "--workdir="], "--workdir is empty: give a value"),
        (["sweep", ""], "RUN is empty"),
        (
            ["pretrain", *QUICKSTART, "--workdir=a", "--workdir=b"],
            "--workdir is given more than once",
        ),
        (["corpus", "check", "--data_dir=x", f"--lengths={10**30}"], "is too large"),
        (["corpus", "vocab", "--data_dir=x", "--output=y", f"--size={10**30}"], "is too large"),
        (["corpus", "vocab", "--data_dir=x", "--output=y", "--tfds_name=a,"], "name or number is"),
        (["pretrain", *QUICKSTART], "--workdir=DIR"),
        ([*DRY_RUN, "--gin.TRAIN_STPES=5"], "TRAIN_STEPS"),
        ([*DRY_RUN, "--gin.FIRE.widht=5"], "width"),
        ([*DRY_RUN, "--gin.TRAIN_STEPS=many"], "TRAIN_STEPS"),
        ([*DRY_RUN, "--gin.TRAIN_STEPS=1.5"], "int"),
        ([*DRY_RUN, "--gin.RoPE.base=5e5"], "RoPE"),
        ([*DRY_RUN, "--gin.BATCH_SIZE=15", "--gin.MeshShape.data=4"], "multiple of 4"),
        (
            [*DRY_RUN, "--gin_file=configs/resampling/random.gin", "--gin.CONSTRUCTION=packed"],
            "RandomizedPositions draws positions for whole rows, not for the documents of packed",
        ),
        (["pretrain", "--dry_run", "--gin_file=configs/runs/quikstart.gin"], "quickstart.gin"),
        ([*DRY_RUN[:3]], "alibi, alibi_pi, bam, dape_alibi"),
        ([*DRY_RUN[:3]], "--gin_file=configs/positions/NAME.gin"),
        (["sweep", "no/such/run"], "no/such/run"),
        (["sweep", "no/such/run@latest"], "must follow the @"),
    ],
    ids=lambda value: "_".join(value[-1:]) if isinstance(value, list) else value,
)
def test_bad_usage_is_told_in_a_line_or_two(arguments, told, capsys):
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("\nfire-lm: ") and told in message
    assert len(message.strip().splitlines()) <= 3 and "Traceback" not in message


def test_a_traceback_only_for_debug(capsys):
    arguments = [*DRY_RUN, "--gin.TRAIN_STPES=5", "--debug"]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" in message and "\nfire-lm: " in message
    assert main(arguments[:-1]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "run, non_embedding, matrices", [("c4_125m", "85.1", "84.9"), ("c4_350m", "302.3", "302.0")]
)
def test_dry_run_of_the_papers_models(run, non_embedding, matrices, capsys):
    """A dry run needs neither data nor as many devices as the mesh has."""
    files = [f"--gin_file=configs/{name}.gin" for name in (f"runs/{run}", "positions/fire")]
    assert main(["pretrain", *files, "--dry_run"]) == 0
    assert f"non-embedding {non_embedding}M ({matrices}M in matrices)" in capsys.readouterr().out


def test_corpus_refuses_a_directory_of_someone_else(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["corpus", f"--data_dir={tmp_path}"]) == 2
    assert "thesis.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def fake_run(path: Path) -> str:
    """Make a folder that looks like a run directory and return its path."""
    path.mkdir(parents=True)
    (path / "config.gin").write_text("")
    return str(path)


def test_sweep_of_a_folder_without_runs(tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    assert main(["sweep", str(tmp_path)]) == 2
    assert "neither a run (no config.gin) nor a folder of runs" in capsys.readouterr().err


def test_sweep_of_runs_in_different_folders_asks_for_a_place(tmp_path, capsys):
    runs = [fake_run(tmp_path / name) for name in ("a/fire", "b/rope")]
    assert main(["sweep", *runs]) == 2
    assert "--output=DIR" in capsys.readouterr().err


def test_sweep_of_runs_of_one_name(tmp_path, capsys):
    runs = [fake_run(tmp_path / name) for name in ("a/fire", "b/fire")]
    assert main(["sweep", *runs, f"--output={tmp_path}"]) == 2
    assert "same name" in capsys.readouterr().err


STEPS = 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a folder with two tiny runs that the command line trained for three steps."""
    folder = tmp_path_factory.mktemp("cli")
    documents = [(f"doc/{i}", f"Text {i} of a few words. ".encode() * 20) for i in range(60)]
    write_corpus(str(folder / "data"), documents, lambda _: None)
    for encoding in ("fire", "rope"):
        code = main(
            [
                "pretrain",
                QUICKSTART[0],
                f"--gin_file=configs/positions/{encoding}.gin",
                f"--gin.DATA_DIR={folder / 'data'}",
                f"--workdir={folder / 'runs' / encoding}",
                f"--gin.TRAIN_STEPS={STEPS}",
                "--gin.BATCH_SIZE=4",
                "--gin.TRAIN_LENGTH=16",
                "--gin.EVAL_LENGTHS=(16, 32)",
                "--gin.size_tiny.num_layers=1",
                "--gin.AdamW.warmup_steps=1",
                "--gin.TextData.shuffle_buffer=16",
                "--gin.Checkpointing.save_every=2",
                "--gin.length_sweep.tokens=1024",
            ]
        )
        assert code == 0
    return folder / "runs"


@pytest.fixture
def runs(trained, tmp_path) -> Path:
    """Return a copy of the two runs that a test may modify."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


@pytest.fixture
def computed(monkeypatch) -> list[tuple[str, int]]:
    """Return a list that receives (run, length) of each evaluation."""
    log: list[tuple[str, int]] = []
    row_losses = evaluation.row_losses

    def logged(model, params, text, laid, tokens_per_batch, mesh, name, bins):
        log.append((name, laid.length))
        return row_losses(model, params, text, laid, tokens_per_batch, mesh, name, bins)

    monkeypatch.setattr(evaluation, "row_losses", logged)
    return log


def lengths_of(path: Path) -> list[tuple[str, int, int]]:
    return [
        (row.run, row.step, row.length) for row in read_table(path / "length_sweep.csv", SweepRow)
    ]


@pytest.mark.ci
def test_sweep_of_a_folder_of_runs(runs, computed, capsys):
    """Each run gets its rows, the folder all rows and the figure; a second sweep adds nothing."""
    assert main(["sweep", str(runs)]) == 0
    everything = [(run, STEPS, length) for run in ("fire", "rope") for length in (16, 32)]
    assert lengths_of(runs) == everything
    assert lengths_of(runs / "fire") + lengths_of(runs / "rope") == everything
    assert computed == [(run, length) for run, _, length in everything]
    assert (runs / "length_sweep.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "16 (x1)" in shown and "32 (x2)" in shown and str(runs / "length_sweep.csv") in shown
    for row in read_table(runs / "length_sweep.csv", SweepRow):
        assert (row.dataset, row.encoding, row.tokens) == ("embedded", row.run, 960)
        assert 3 < row.nll < 7 and row.nll_stderr > 0

    beside = [
        read_table(epath.Path(runs / name) / "position_losses.csv", PositionLoss)
        for name in ("fire", "rope")
    ]
    assert read_table(runs / "position_losses.csv", PositionLoss) == [*beside[0], *beside[1]]
    assert [(row.run, row.length, row.first) for row in beside[1]] == [
        ("rope", 32, place) for place in range(32)
    ]

    before = (runs / "length_sweep.csv").read_bytes()
    computed.clear()
    assert main(["sweep", str(runs)]) == 0
    assert computed == [] and (runs / "length_sweep.csv").read_bytes() == before


@pytest.mark.ci
def test_sweep_of_one_run_at_more_lengths_and_steps(runs, computed, capsys):
    """Finished rows are kept. Two checkpoints of one run are shown as two curves."""
    fire = str(runs / "fire")
    assert main(["sweep", fire]) == 0
    assert main(["sweep", f"{fire}@2", fire, "--gin.EVAL_LENGTHS=(8, 16, 32)"]) == 0
    expected = [(2, 8), (2, 16), (2, 32), (STEPS, 16), (STEPS, 32), (STEPS, 8)]
    assert [(step, length) for _, step, length in lengths_of(runs / "fire")] == expected
    assert len(computed) == len(expected)
    assert (runs / "fire" / "length_sweep.png").exists()
    shown = capsys.readouterr().out
    assert "fire, step 2  " in shown and f"fire, step {STEPS}  " in shown
    assert not (runs / "length_sweep.csv").exists()


@pytest.mark.ci
def test_sweep_into_another_folder(runs, tmp_path):
    output = tmp_path / "new" / "folder"
    assert main(["sweep", str(runs / "fire"), str(runs / "rope"), f"--output={output}"]) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "length_sweep.csv",
        "length_sweep.png",
        "position_losses.csv",
        "scored_text.csv",
    ]
    assert lengths_of(output) == lengths_of(runs / "fire") + lengths_of(runs / "rope")


@pytest.mark.ci
def test_sweep_of_a_copied_run_shows_the_copy_alone(runs):
    """The copy contains rows under the run's old name."""
    assert main(["sweep", str(runs / "fire")]) == 0
    (runs / "fire").rename(runs / "moved")
    assert main(["sweep", str(runs)]) == 0
    assert {run for run, _, _ in lengths_of(runs)} == {"moved", "rope"}


@pytest.mark.ci
def test_sweep_of_a_run_named_twice_has_its_rows_once(runs):
    assert main(["sweep", str(runs), str(runs / "fire"), f"--output={runs}"]) == 0
    assert len(lengths_of(runs)) == len(set(lengths_of(runs))) == 4


@pytest.mark.ci
def test_sweep_inside_the_run_directory(runs, monkeypatch):
    root = Path.cwd()
    monkeypatch.chdir(runs / "fire")
    assert main(["sweep", ".", f"--gin_search_paths={root}"]) == 0
    assert {run for run, _, _ in lengths_of(runs / "fire")} == {"fire"}


@pytest.mark.ci
@pytest.mark.parametrize(
    "change, told",
    [
        ("--gin.FIRE.init_L=5", "the model would differ from the trained model"),
        ("--gin.POSITION=@NoPE", "was trained as fire"),
        ("--gin_file=configs/positions/nope.gin", "was trained as fire"),
    ],
)
def test_sweep_of_another_model_than_was_trained(runs, change, told, capsys):
    assert main(["sweep", str(runs / "fire"), change]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.ci
def test_dry_run_of_a_sweep_writes_nothing(runs, capsys):
    before = sorted(runs.rglob("*"))
    assert main(["sweep", str(runs), "--dry_run"]) == 0
    assert sorted(runs.rglob("*")) == before
    assert f"fire@{STEPS} at " in capsys.readouterr().out


@pytest.mark.ci
def test_sweep_of_a_folder_leaves_out_a_run_without_checkpoints(runs, capsys):
    fake_run(runs / "young")
    assert main(["sweep", str(runs), "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert "young has no checkpoint yet: skipped" in shown and "fire@" in shown


@pytest.mark.ci
def test_sweep_of_a_checkpoint_that_is_missing(runs, capsys):
    assert main(["sweep", f"{runs / 'fire'}@1"]) == 2
    assert f"has no checkpoint 1: choose one of [2, {STEPS}]" in capsys.readouterr().err
    shutil.rmtree(runs / "rope" / "checkpoints")
    assert main(["sweep", str(runs / "rope")]) == 2
    assert "no complete checkpoint" in capsys.readouterr().err


@pytest.mark.ci
def test_a_failure_while_running_is_exit_code_1(runs, monkeypatch, capsys):
    def fail(*_):
        raise RunFailed("storage is on fire")

    monkeypatch.setattr(evaluation, "row_losses", fail)
    assert main(["sweep", str(runs)]) == 1
    assert capsys.readouterr().err == "\nfire-lm: storage is on fire\n"


def test_storage_errors_are_told_plainly(monkeypatch, capsys):
    def fail(*_):
        raise PermissionError(13, "Permission denied", "gs://bucket")

    monkeypatch.setattr(corpus, "run", fail)
    assert main(["corpus", "--data_dir=x"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("\nfire-lm: reading or writing failed: ") and "Traceback" not in error
    monkeypatch.setattr(corpus, "run", lambda _: 1 / 0)  # the traceback of a bug is shown
    with pytest.raises(ZeroDivisionError):
        main(["corpus", "--data_dir=x"])


def test_flags_are_not_abbreviated(capsys):
    assert main([*DRY_RUN, "--allow"]) == 2
    assert "unknown argument --allow" in capsys.readouterr().err


def test_lengths_need_no_brackets(capsys):
    assert main([*DRY_RUN, "--gin.EVAL_LENGTHS=64,128"]) == 0
    assert "EVAL_LENGTHS = (64, 128)" in capsys.readouterr().out


@pytest.mark.ci
def test_a_finished_run_whose_configuration_was_moved_away_gets_a_new_one(runs, capsys):
    """This is the remedy that the message about a damaged configuration suggests."""
    saved = (runs / "fire" / "config.gin").read_text()
    away = (runs / "fire" / "config.gin").rename(runs / "away.gin")
    assert main(["pretrain", f"--gin_file={away}", f"--workdir={runs / 'fire'}"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (runs / "fire" / "config.gin").read_text() == saved


@pytest.mark.ci
def test_a_workdir_of_another_experiment_is_refused(runs, capsys):
    fire = runs / "fire"
    again = ["pretrain", f"--gin_file={fire / 'config.gin'}", f"--workdir={fire}"]
    assert main([*again, "--gin.SEED=1"]) == 2
    assert "SEED: 0 -> 1" in capsys.readouterr().err
    assert sorted(path.name for path in fire.glob("config*.gin")) == ["config.gin"]
