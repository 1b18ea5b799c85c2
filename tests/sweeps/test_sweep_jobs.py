"""`fire-lm sweep` as a job: its checkpoints, following a live run, kills, and two jobs at once."""

import csv
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etils import epath
from sample_run import command, write_text

from fire_lm.checkpoints import available_steps
from fire_lm.cli import main, parse
from fire_lm.cli.sweep import Sweep
from fire_lm.errors import RunFailed, UserError
from fire_lm.experiment import load_experiment
from fire_lm.results import SweepRow, merge_table, ranked_steps, read_table
from fire_lm.runs import find
from fire_lm.runs.find import RunSteps
from fire_lm.runs.saved import save_config
from fire_lm.sweeps import schedule
from fire_lm.sweeps import survey as survey_module
from fire_lm.sweeps.claims import claimed
from fire_lm.sweeps.survey import Survey
from fire_lm.training.lock import only_writer

SWEEP = ["--gin.EVAL_LENGTHS=32,64", "--gin.length_sweep.tokens=2048"]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rows(workdir: Path) -> list[dict[str, str]]:
    path = workdir / "length_sweep.csv"
    return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []


@pytest.mark.slow
def test_a_live_run_is_followed_by_a_sweeper_that_is_killed_twice(data_dir, tmp_path):
    """In the end, the CSV equals that of one sweep made afterwards, row for row."""
    workdir = tmp_path / "live"
    keep = ["--gin.Checkpointing.keep_every=1", "--gin.pretrain.log_every=10"]
    train = command(data_dir, workdir, *keep, "--gin.TRAIN_STEPS=1500",
                    "--gin.Checkpointing.save_every=250")  # fmt: skip
    follow = ["sweep", str(workdir), "--follow", *SWEEP]
    sweeper = process(*follow)  # before the run exists
    trainer = process(*train)
    killed = 0
    while killed < 2:
        assert trainer.stdout is not None and sweeper.poll() is None
        if len(rows(workdir)) > 3 * killed:
            sweeper.kill()
            sweeper.communicate()
            killed += 1
            sweeper = process(*follow)
        time.sleep(0.02)
    said = sweeper.communicate(timeout=600)[0]
    assert sweeper.returncode == 0, said
    trained = trainer.communicate(timeout=60)[0]
    assert trainer.returncode == 0, trained
    assert available_steps(workdir) == list(range(250, 1501, 250))

    names = ("length_sweep.csv", "position_losses.csv", "scored_text.csv")
    files = [workdir / name for name in names]
    followed = [path.read_text() for path in files]
    keys = [(row["step"], row["length"]) for row in rows(workdir)]
    assert keys == [(str(s), n) for s in range(250, 1501, 250) for n in ("32", "64")]
    assert followed[1].count("\n") == 1 + 6 * 64, "64 bins of each of 6 checkpoints, once"
    for path in files:
        path.unlink()
    assert main(["sweep", f"{workdir}@all", *SWEEP]) == 0
    assert [path.read_text() for path in files] == followed


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("runs") / "tiny"
    keep = "--gin.Checkpointing.keep_every=1"
    assert main(command(data_dir, workdir, keep)) == 0
    return workdir


@pytest.fixture
def run(finished, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(finished, tmp_path / "tiny"))


def steps_of(workdir: Path) -> list[int]:
    return sorted({int(row["step"]) for row in rows(workdir)})


@pytest.mark.ci
def test_checkpoints_by_number_and_all(run, capsys):
    there = available_steps(run)
    assert len(there) > 2
    assert main(["sweep", f"{run}@{there[1]},{there[0]}", *SWEEP]) == 0
    assert steps_of(run) == there[:2]
    assert main(["sweep", f"{run}@all", *SWEEP]) == 0
    assert steps_of(run) == there
    assert main(["sweep", f"{run}@some", *SWEEP]) == 2
    assert (
        "a step, steps separated by commas, or `all` must follow the @" in capsys.readouterr().err
    )


@pytest.mark.ci
def test_a_run_that_has_ended_is_followed_to_its_end_at_once(run, capsys):
    there = available_steps(run)
    damaged = next(iter((run / "checkpoints" / str(there[1]) / "state").rglob("d/*")))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    assert main(["sweep", str(run), "--follow", *SWEEP]) == 0
    assert steps_of(run) == [there[0], *there[2:]]
    assert f"checkpoint {there[1]} of {run} is damaged" in capsys.readouterr().out


@pytest.mark.ci
def test_a_run_that_cannot_be_evaluated_does_not_end_the_others_evaluation(
    run, monkeypatch, capsys
):
    shutil.copytree(run, unfit := run.with_name("a_encoder"))
    measure_of = Sweep.measure_of

    def refusing(command, experiment, workdir):
        if workdir.name == unfit.name:
            raise UserError(f"{workdir}: use MaskedAccuracy")
        return measure_of(command, experiment, workdir)

    monkeypatch.setattr(Sweep, "measure_of", refusing)
    assert main(["sweep", str(run.parent), "--follow", *SWEEP]) == 1
    assert steps_of(run) == available_steps(run)
    assert "3 checkpoints could not be scored" in (told := capsys.readouterr().err)
    assert told.count("use MaskedAccuracy") == 3
    assert main(["sweep", str(unfit), "--follow", *SWEEP]) == 2


@pytest.mark.ci
def test_steps_that_are_bound_without_the_macro_are_followed_to_their_end(run, capsys):
    """The saved configuration then has `pretrain.train_steps`, but no TRAIN_STEPS."""
    config = (run / "config.gin").read_text()
    last = available_steps(run)[-1]
    bound = config.replace("pretrain.train_steps = %TRAIN_STEPS", f"pretrain.train_steps = {last}")
    assert bound != config
    (run / "config.gin").write_text(re.sub(r"(?m)^TRAIN_STEPS = .*\n", "", bound))
    assert main(["sweep", str(run), "--follow", *SWEEP]) == 0
    assert steps_of(run) == available_steps(run)


def test_a_run_that_is_being_started_again_has_not_ended(tmp_path, monkeypatch):
    """Its configuration has the former number of steps until its first step is complete."""
    experiment = load_experiment(["configs/runs/quickstart.gin"], ["POSITION=@RoPE"])
    save_config(experiment, tmp_path)
    survey = Survey(Sweep(parse(["sweep", str(tmp_path), "--follow"])))
    monkeypatch.setattr(survey_module, "available_steps", lambda _: [experiment.train.train_steps])
    run = RunSteps(epath.Path(tmp_path))
    with only_writer(str(tmp_path)):
        assert not survey._has_ended(run)
    assert survey._has_ended(run)


def test_a_step_that_never_existed_is_named_once_training_has_ended(tmp_path, monkeypatch):
    """A step that was scored and then removed is not missing."""
    (tmp_path / "config.gin").write_text("")
    survey = Survey(Sweep(parse(["sweep", f"{tmp_path}@10,20,30,40", "--follow"])))
    monkeypatch.setattr(survey_module, "available_steps", lambda _: [20, 30, 50])
    monkeypatch.setattr(Survey, "_has_ended", lambda *_: True)
    monkeypatch.setattr(Sweep, "scored_steps", lambda *_: {10, 20, 30})
    due, _, over = survey.look()
    assert due == [(str(tmp_path), 20), (str(tmp_path), 30)] and over
    for name, step in due:
        survey.leave(name, step)
    assert survey.look()[0] == []
    with pytest.raises(RunFailed) as raised:
        survey.judge()
    assert str(raised.value) == (
        "1 checkpoint could not be scored\n"
        f"{tmp_path}@40: training has ended, but there is no such checkpoint"
    )
    monkeypatch.setattr(Sweep, "scored_steps", lambda *_: {10, 20, 30, 40})
    survey.judge()


@pytest.fixture
def removed(run, monkeypatch) -> int:
    """Remove the second checkpoint while the first is scored; return the second step."""
    first, second, *_ = available_steps(run)
    score = Sweep.evaluate

    def remove_the_next(command, workdir, step):
        if step == first:
            shutil.rmtree(run / "checkpoints" / str(second))
        return score(command, workdir, step)

    monkeypatch.setattr(Sweep, "evaluate", remove_the_next)
    return second


@pytest.mark.ci
def test_one_that_was_removed_is_named(run, removed, capsys):
    there = available_steps(run)
    assert main(["sweep", str(run), "--follow", *SWEEP]) == 0
    assert steps_of(run) == [step for step in there if step != removed]
    told = capsys.readouterr().out
    assert f"checkpoint {removed} of {run} was removed before it was scored" in told


@pytest.mark.ci
def test_all_goes_on_without_one_that_was_removed(run, removed, capsys):
    there = available_steps(run)
    assert main(["sweep", f"{run}@all", *SWEEP]) == 1
    assert steps_of(run) == [step for step in there if step != removed]
    told = capsys.readouterr()
    assert f"{run}@{removed} is skipped" in told.out and "Nats per token" in told.out
    assert f"1 of {len(there)} checkpoints could not be scored" in told.err


@pytest.mark.ci
def test_a_run_that_stopped_at_nan_has_ended(run, capsys):
    last = available_steps(run)[-1]
    config = (run / "config.gin").read_text()
    (run / "config.gin").write_text(config.replace(f"TRAIN_STEPS = {last}", "TRAIN_STEPS = 99"))
    (run / "spikes.jsonl").write_text('{"step": 40, "loss": "nan", "stopped": true}\n')
    assert main(["sweep", str(run), "--follow", *SWEEP]) == 0
    assert "stopped early at step 40" in capsys.readouterr().out


@pytest.mark.ci
def test_one_compile_serves_all_checkpoints(run, monkeypatch):
    from fire_lm.measures import scoring

    scoring.scorer.cache_clear()
    assert main(["sweep", f"{run}@all", *SWEEP]) == 0
    found = scoring.scorer.cache_info()
    assert found.misses == 2 and found.hits == 2 * (len(available_steps(run)) - 1)


@pytest.mark.ci
def test_several_protocols_side_by_side(run, capsys):
    protocols = ["--gin.length_sweep.protocols=full,sliding", "--gin.length_sweep.stride=16"]
    assert main(["sweep", str(run), *SWEEP, *protocols]) == 0
    found = {(row["protocol"], row["length"]): row for row in rows(run)}
    assert set(found) == {(p, n) for p in ("full", "sliding-16") for n in ("32", "64")}
    assert len({row["tokens"] for row in found.values()}) == 1
    assert float(found["full", "64"]["nll"]) == pytest.approx(
        float(found["sliding-16", "64"]["nll"]), rel=1e-6
    ), "one window a row"
    shown = capsys.readouterr().out
    assert "concat, sliding-16\n" in shown and "concat\n" in shown
    assert main(["sweep", str(run), *SWEEP, "--gin.length_sweep.protocols=whole"]) == 2
    assert (
        "there is no protocol 'whole': choose from full, last256, sliding"
        in capsys.readouterr().err
    )


@pytest.mark.ci
def test_a_run_that_has_not_begun_does_not_hold_up_the_others(run, tmp_path, monkeypatch, capsys):
    import shutil

    late, naps = tmp_path / "late", iter(range(9))

    def begin(seconds):
        if next(naps) == 1:
            shutil.copytree(run, late)
            (late / "length_sweep.csv").unlink()

    monkeypatch.setattr(schedule.time, "sleep", begin)
    names = [str(late), str(run), f"--output={tmp_path / 'both'}"]
    assert main(["sweep", *names, "--follow", *SWEEP]) == 0
    assert steps_of(late) == steps_of(run) == available_steps(run)
    told = capsys.readouterr().out
    assert told.count("there is no run directory") == 1
    assert {row["run"] for row in rows(tmp_path / "both")} == {"late", "tiny"}


@pytest.mark.ci
def test_one_that_cannot_be_scored_does_not_hold_up_the_others(run, monkeypatch, capsys):
    there, score = available_steps(run), Sweep.evaluate

    def fail_at_first(command, workdir, step):
        if step == there[0]:
            raise RunFailed(f"{workdir}@{step}: the loss at length 32 is nan")
        return score(command, workdir, step)

    monkeypatch.setattr(Sweep, "evaluate", fail_at_first)
    monkeypatch.setattr(schedule, "_EVERY", 0.0)
    assert main(["sweep", str(run), "--follow", *SWEEP]) == 1
    assert steps_of(run) == there[1:]
    assert "1 checkpoint could not be scored" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.parametrize("blocks", [False, True])
def test_documents_too_short_for_a_length(run, data_dir, tmp_path, capsys, blocks):
    """Rows without numbers are written once, and following the run still ends."""
    long = ["--gin.EVAL_LENGTHS=32,64,8192", "--gin.CONSTRUCTION=long_documents"]
    if blocks:
        assert (
            main(["corpus", "blocks", f"--data_dir={data_dir}", f"--output={tmp_path / 'b'}"]) == 0
        )
        long += ["--gin_file=configs/data/blocks.gin", f"--gin.DATA_DIR={tmp_path / 'b'}"]
    long.append(f"--gin.length_sweep.tokens={2**20}")
    assert main(["sweep", str(run), "--follow", *long]) == 0
    found = rows(run)
    assert {row["length"] for row in found if row["tokens"] == "0"} == {"8192"}
    assert {row["nll"] for row in found if row["tokens"] == "0"} == {"nan"}
    assert steps_of(run) == available_steps(run) and len(found) == 3 * len(steps_of(run))
    told = capsys.readouterr().out
    assert "has too little text for length 8192: the results are left" in told and "no text" in told
    before = (run / "length_sweep.csv").read_text()
    assert main(["sweep", f"{run}@all", *long]) == 0
    assert (run / "length_sweep.csv").read_text() == before


@pytest.mark.ci
def test_all_but_the_damaged(run, capsys):
    there = available_steps(run)
    next((run / "checkpoints" / str(there[0])).rglob("d/*")).write_bytes(b"")
    assert main(["sweep", f"{run}@all", *SWEEP]) == 0
    assert steps_of(run) == there[1:] and "is damaged" in capsys.readouterr().out
    for step in there[1:]:
        next((run / "checkpoints" / str(step)).rglob("d/*")).write_bytes(b"")
    assert main(["sweep", f"{run}@all", *SWEEP]) == 1
    assert "there is no intact checkpoint to evaluate" in capsys.readouterr().err


def test_the_best_are_those_at_the_longest_length():
    """A step with only some lengths scored is not ranked by its shorter length."""
    complete = [a_row(s, n, nll) for s, nll in ((10, 2.0), (20, 1.0)) for n in (32, 64)]
    assert ranked_steps(complete) == [20, 10]
    assert ranked_steps([*complete, a_row(30, 32, 0.5)]) == [20, 10]
    assert ranked_steps([]) == []
    longer = a_row(10, 128, 0.5)
    assert ranked_steps([*complete, longer]) == [20, 10], "one longer sweep omits no step"
    early = dataclasses.replace(a_row(5, 64, 0.1), split="train")
    assert ranked_steps([early, *complete]) == [20, 10], "nor does one sweep of another text"
    both = [early, *complete, dataclasses.replace(a_row(10, 64, 0.2), split="train")]
    assert ranked_steps(both) == [5, 10], "the first, although another may be a step ahead"
    texts = {10: "a", 20: "", 40: "a"}
    third = [a_row(40, n, 3.0) for n in (32, 64)]
    ranked = ranked_steps([*complete, *third], lambda row: texts[row.step])
    assert ranked == [10, 40], "never over two texts"


def a_row(step: int, length: int, nll: float = 1.0) -> SweepRow:
    place = ("run", "fire", "", step, "c4", "validation", "concat", "full", length)
    return SweepRow(*place, 1, 2, 3, nll, 0.1, 2.7, 1.4)


def test_rows_of_two_writers_stay(tmp_path):
    path = epath.Path(tmp_path / "length_sweep.csv")
    merge_table(path, SweepRow, [a_row(20, 64)])
    merge_table(path, SweepRow, [a_row(10, 64), a_row(20, 32)])
    assert merge_table(path, SweepRow, [a_row(20, 64, nll=9.0)]) == read_table(path, SweepRow)
    found = [(row.step, row.length, row.nll) for row in read_table(path, SweepRow)]
    assert found == [(10, 64, 1.0), (20, 64, 1.0), (20, 32, 1.0)]


def test_two_sweepers_do_not_score_the_same(tmp_path):
    with claimed(tmp_path, "10-plain") as first, claimed(tmp_path, "10-plain") as second:
        assert first is not None and second is None
        with claimed(tmp_path, "20-plain") as other:
            assert other
    with claimed(tmp_path, "10-plain") as again:
        assert again


@pytest.mark.ci
def test_what_cannot_be_followed(run, tmp_path, capsys):
    assert main(["sweep", str(run), "--follow", "--dry_run"]) == 2
    assert "--follow and --dry_run cannot be used together" in capsys.readouterr().err
    with pytest.raises(UserError, match="'run@1,,2': a step, steps separated by commas"):
        find.split_steps("run@1,,2")
    for step in available_steps(run):
        next((run / "checkpoints" / str(step)).rglob("d/*")).write_bytes(b"")
    with pytest.raises(RunFailed, match="without an intact checkpoint"):
        schedule.evaluate_checkpoints(Sweep(parse(["sweep", str(run), "--follow"])))
