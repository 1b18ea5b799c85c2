"""Every suite, from the official files to the report, with kills on the way.

The commands are `corpus tasks`, then `finetune` and `evaluate`, each of which is killed and
repeated, and `report`.

The model is tiny and the data sets are ours, in the official formats (sample_suites.py). Runs that
are killed have processes of their own; all others share this one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sample_suites
from etils import epath
from sample_run import command, logged, write_text
from suite_data import examples, text_of

from fire_lm.checkpoints.manifest import MANIFEST
from fire_lm.cli import main
from fire_lm.data.suites import seqio_tasks
from fire_lm.results import TaskScore, read_table
from fire_lm.tasks.suites import SUITES, TASKS

pytestmark = pytest.mark.ci
ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300  # seconds
# The configurations' settings that are too large for this model. Inputs have at most 20,000 bytes,
# and those of 3000 words exceed every length below.
SMALL = ("TRAIN_LENGTH=256", "BATCH_SIZE=4", "TextToText.shuffle_buffer=8", "finetune.log_every=1")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory) -> Iterator[Path]:
    """Yield a folder with the data sets of all suites and a run to finetune."""
    top = tmp_path_factory.mktemp("suites")
    for suite in ("scrolls", "glue_super_glue"):
        source = sample_suites.write_suite(suite, top / suite)
        corpus("--suite", suite, "--source", source, "--data_dir", top / "data")
    sizes = ("--sizes=3,6", "--train_size=2", "--rows=60", "--examples=8")
    corpus("--suite=long_eval", *sizes, "--data_dir", top / "data")
    trained = command(
        write_text(top / "text"), top / "runs/source", "--gin.TRAIN_STEPS=3", position="alibi"
    )
    assert main(trained) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUITES_DATA", str(top / "data"))
        yield top
        import seqio  # other tests register these names for other folders

        registered = sys.modules.pop("suite_mixture", None)
        if registered is not None:
            seqio.MixtureRegistry.remove("scrolls_together")


def corpus(*arguments: object) -> None:
    assert main(["corpus", "tasks", *map(str, arguments)]) == 0


def finetuning(top: Path, name: str, config: str, *bindings: str) -> list[str]:
    given = (f"INIT_FROM={top}/runs/source", f"DATA_DIR={top}/data", *SMALL, *bindings)
    return [
        *("finetune", f"--gin_file=configs/finetune/{config}.gin", f"--workdir={top}/runs/{name}"),
        *(f"--gin.{binding}" for binding in given),
    ]


def evaluation(top: Path, name: str, config: str, *flags: str) -> list[str]:
    return [
        *("evaluate", f"{top}/runs/{name}", f"--gin_file=configs/tasks/{config}.gin"),
        *(f"--gin.{binding}" for binding in (f"DATA_DIR={top}/data", "TARGET_LENGTH=12")),
        *flags,
    ]


def rows(top: Path, name: str) -> list[TaskScore]:
    return read_table(epath.Path(top / "runs" / name / "task_scores.csv"), TaskScore)


def predictions(top: Path, name: str) -> dict[str, list[bytes]]:
    """Return the complete lines of each file."""
    found = (top / "runs" / name / "predictions").glob("*.jsonl")
    return {path.name: path.read_bytes().split(b"\n")[:-1] for path in found}


def killed(arguments: list[str], when: Callable[[], object]) -> None:
    """Run the command in a separate process, and kill it without a chance to clean up."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    process = subprocess.Popen(
        [sys.executable, "-m", "fire_lm", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    give_up = time.monotonic() + PATIENCE
    while not when():
        assert process.poll() is None, f"ended too early: {process.communicate()[1]}"
        assert time.monotonic() < give_up
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL


def check_columns(suite: str, found: list[TaskScore]) -> None:
    """Check that each column has one row, from all examples."""
    for column in SUITES[suite].columns:
        (row,) = [
            row
            for row in found
            if (row.task, row.metric) == (f"fire_lm:{column.task}", column.metric)
            and row.split == column.split
        ]
        assert row.suite == suite and 0 <= row.value <= 100 and row.stderr >= 0, row


def test_the_data_sets_have_all_that_the_command_writes(folder):
    """All columns of all suites exist, and the mixture's rates are the numbers of training rows."""
    for name, task in TASKS.items():
        registered = seqio_tasks.task_or_mixture(f"fire_lm:{name}", str(folder / "data"), "bytes")
        of = examples(f"fire_lm:{name}", folder / "data", "validation")
        targets = [registered.postprocess_fn("", example=e, is_target=True) for e in of]
        for answer, score in ((lambda e: text_of(e["targets"]), 100), (lambda e: "", 0)):
            given = [registered.postprocess_fn(answer(e), example=e, is_target=False) for e in of]
            values = registered.metric_fns[0](targets, given)
            assert values[task.primary] == pytest.approx(score)
    mixture = seqio_tasks.task_or_mixture("fire_lm:glue_super_glue", str(folder / "data"), "bytes")
    rates = {task.name: mixture.get_rate(task) for task in mixture.tasks}
    assert "fire_lm:glue_wnli" not in rates and "fire_lm:glue_stsb" in rates and len(rates) == 15
    assert rates["fire_lm:super_glue_wsc"] == 15 and rates["fire_lm:super_glue_multirc"] == 180
    batch = list(
        mixture.get_dataset({"inputs": 64, "targets": 8}, num_epochs=None, seed=0).take(40)
    )
    assert len({bytes(e["inputs"].numpy()[:6]) for e in batch}) > 3
    assert len(seqio_tasks.register(str(folder / "data"), "bytes")) == len(TASKS) + 1


def test_scrolls(folder, capsys):
    """One run, finetuned on the seven data sets, is killed after its first checkpoint."""
    bindings = ("TASK=scrolls_together", "TARGET_LENGTH=96", "TRAIN_STEPS=16")
    run = finetuning(folder, "scrolls", "suite", *bindings, "Checkpointing.save_every=4")
    run.append("--import=suite_mixture")
    workdir = folder / "runs" / "scrolls"
    killed(run, (workdir / "checkpoints" / "4" / MANIFEST).exists)
    capsys.readouterr()
    assert main(run) == 0
    assert "resuming from step" in capsys.readouterr().out
    assert [row["step"] for row in logged(workdir)] == list(range(1, 17))
    asked = ("TASK=scrolls_together", "EVAL_LENGTHS=(40,)", "evaluate.suite='scrolls'")
    every = ["--import=suite_mixture", *(f"--gin.{binding}" for binding in asked)]
    assert main(evaluation(folder, "scrolls", "suite", *every)) == 0
    assert "inputs of fire_lm:scrolls_qasper have more than 40 tokens" in capsys.readouterr().out
    found = rows(folder, "scrolls")
    check_columns("scrolls", found)
    assert {(row.examples, row.step, row.input_length) for row in found} == {(20, 16, 40)}
    texts = [json.loads(line) for line in predictions(folder, "scrolls").popitem()[1]]
    assert len({one["id"] for one in texts}) == 20 and all(one["answers"] for one in texts)
    # The data set's own configuration finds the same rows.
    again = evaluation(folder, "scrolls", "scrolls_qasper", "--lengths=40", "--dry_run")
    assert main(again) == 0
    assert "0 of 1 results to compute" in capsys.readouterr().out


def test_narrative_qa(folder, capsys):
    """The evaluation of that run at seven lengths is killed midway."""
    lengths = (16, 24, 32, 48, 64, 96, 127)
    flags = ("--lengths", ",".join(map(str, lengths)), "--gin.evaluate.batch_size=1")
    run = evaluation(folder, "scrolls", "narrative_qa", *flags)

    def files() -> dict[str, list[bytes]]:
        found = predictions(folder, "scrolls")
        return {name: lines for name, lines in found.items() if ".40." not in name}

    killed(run, lambda: sum(map(len, files().values())) > 3)
    before = files()
    assert 3 < sum(map(len, before.values())) < 20 * len(lengths)
    assert main(run) == 0
    after = files()
    for name, lines in before.items():
        assert after[name][: len(lines)] == lines, "answered again"
    found = [row for row in rows(folder, "scrolls") if row.suite == "narrative_qa"]
    assert [(row.input_length, row.examples) for row in found] == [(n, 20) for n in lengths]
    for lines in after.values():
        assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 20


@pytest.mark.parametrize("dataset", ["gov_report", "qmsum"])
def test_rouge_of_short_inputs(folder, capsys, dataset):
    """The run is not finetuned; ALiBi is evaluated as trained and interpolated."""
    bound = "--gin.evaluate.inputs_below=1000"
    run = evaluation(folder, "source", f"{dataset}_rouge", bound, "--lengths=1000")
    assert main([*run, "--also=--gin.ALiBi.interpolate=True"]) == 0
    told = capsys.readouterr().out
    assert f"18 of 20 inputs of fire_lm:scrolls_{dataset} have fewer than 1,000 tokens" in told
    assert "2 are excluded" in told and "truncated" not in told
    found = [row for row in rows(folder, "source") if row.suite == f"{dataset}_rouge"]
    assert {(row.variant != "", row.metric) for row in found} == {
        (interpolated, metric)
        for interpolated in (False, True)
        for metric in ("rgm", "rouge1", "rouge2", "rougeL")
    }
    assert {(row.split, row.examples) for row in found} == {("validation, inputs below 1000", 18)}


def test_glue_and_super_glue(folder, capsys):
    """A run on the mixture resumes after its first steps; WNLI is evaluated but not trained on."""
    run = finetuning(folder, "glue", "glue_super_glue")
    for steps in (2, 4):
        assert main([*run, f"--gin.TRAIN_STEPS={steps}"]) == 0
    assert [row["step"] for row in logged(folder / "runs" / "glue")] == [1, 2, 3, 4]
    for more in ([], ["--gin.TASK=fire_lm:glue_wnli"]):
        assert main(evaluation(folder, "glue", "glue_super_glue", "--lengths=100", *more)) == 0
    found = rows(folder, "glue")
    check_columns("glue_super_glue", found)
    assert {row.task for row in found} >= {"fire_lm:glue_stsb", "fire_lm:glue_wnli"}
    assert len({row.task for row in found}) == 16


@pytest.mark.parametrize("task", ["lines", pytest.param("topics", marks=pytest.mark.slow)])
def test_long_eval(folder, capsys, task):
    """The model is finetuned on small sizes and evaluated at larger ones."""
    run = finetuning(folder, task, f"long_eval_{task}", "TARGET_LENGTH=32")
    for steps in (1, 2):
        assert main([*run, f"--gin.TRAIN_STEPS={steps}"]) == 0
    for size in (3, 6):
        asked = (f"--gin.evaluate.split=size_{size}", "--lengths=100")
        assert main(evaluation(folder, task, f"long_eval_{task}", *asked)) == 0
        assert f"{task} at 100, 95 % intervals: accuracy " in capsys.readouterr().out
    found = rows(folder, task)
    assert {(row.split, row.metric) for row in found} >= {
        ("size_3", "accuracy"),
        ("size_6", "accuracy"),
    }
    assert {(row.suite, row.task, row.examples, row.step) for row in found} == {
        ("long_eval", f"fire_lm:long_eval_{task}", 8, 2)
    }
    missing = evaluation(folder, task, f"long_eval_{task}", "--gin.evaluate.split=size_7")
    assert main(missing) == 2
    assert "has no split 'size_7'" in capsys.readouterr().err


def test_the_report_has_every_suite(folder, tmp_path):
    assert main(["report", str(folder / "runs"), f"--output={tmp_path}"]) == 0
    page = (tmp_path / "report.md").read_text()
    for suite in SUITES:
        assert f"Task scores: {suite}\n" in page
    # Every average has all of its columns, except NarrativeQA's, which is read at shorter lengths
    # here.
    (lacking,) = [line for line in page.splitlines() if line.startswith("An average needs all ")]
    assert "lacks the columns 512, 2,048, 4,096, 8,192, 16,384, 24,576, 32,768." in lacking
