"""configs/finetune and configs/tasks: each file loads and refers to a task of a suite."""

from pathlib import Path

import pytest
from training_experiments import experiment_of

from fire_lm.experiment import load_experiment
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.runs.variants import variant_of
from fire_lm.tasks.suites import SUITES, TASKS
from fire_lm.training import Finetuning

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
MODEL = ["--gin_file=configs/models/125m.gin", "--gin_file=configs/positions/fire.gin",
         "--gin.VOCABULARY=bytes", "--gin.VOCAB_SIZE=32128"]  # fmt: skip

NOT_OF_SUITES = ("base", "recipe", "pairs", "suite")


def names(folder):
    paths = sorted((CONFIGS / folder).glob("*.gin"))
    return [path.stem for path in paths if path.stem not in NOT_OF_SUITES]


def one_quick(folder):
    """Return all configurations; only one runs in the quick tests, the others in the ci tier."""
    quick, *others = names(folder)
    return [quick, *(pytest.param(name, marks=pytest.mark.ci) for name in others)]


def target_length(task):
    """Return the longest target that a task, or a task of a mixture, needs."""
    name = task.removeprefix("fire_lm:")
    tasks = [TASKS[name]] if name in TASKS else SUITES[name].tasks
    return max(one.target_length for one in tasks)


def test_every_data_set_of_scrolls_and_long_eval_has_both_files():
    wanted = {task.name for suite in ("scrolls", "long_eval") for task in SUITES[suite].tasks}
    assert len(wanted) == 9
    assert wanted <= set(names("finetune")) and wanted <= set(names("tasks"))


@pytest.mark.parametrize("name", one_quick("finetune"))
def test_finetuning_is_that_of_the_paper(name):
    run = experiment_of(["finetune", f"--gin_file=configs/finetune/{name}.gin", *MODEL]).train
    assert isinstance(run, Finetuning) and run.data.target_length == target_length(run.data.name)
    small = name == "glue_super_glue"
    assert (run.batch_size, run.train_length) == ((256, 1024) if small else (128, 8192))
    assert run.train_steps == 25_000 and run.data.data_dir == "gs://YOUR_BUCKET/tasks"


@pytest.mark.parametrize("name", one_quick("tasks"))
def test_a_run_that_was_not_finetuned_can_be_evaluated(name):
    files = ["configs/runs/c4_125m.gin", "configs/positions/fire.gin", f"configs/tasks/{name}.gin"]
    asked: TextEvaluation = load_experiment(files, ["VOCABULARY=bytes"]).task
    assert asked.data.target_length == target_length(asked.data.name)
    assert asked.suite in SUITES and asked.decoding == "greedy" and asked.split == "validation"
    if asked.suite in ("scrolls", "glue_super_glue", "long_eval"):
        row = 1024 if asked.suite == "glue_super_glue" else 8192
        assert [asked.context_length(length) for length in asked.lengths] == [row]
    else:
        assert asked.lengths == SUITES[asked.suite].lengths
    # With its end token, no selected input is longer than the input length.
    assert asked.inputs_below == (16384 if asked.suite.endswith("_rouge") else None)


def test_interpolation_is_a_variant_of_the_evaluation(tmp_path):
    """As in Table 1 of 2310.13017, the same ALiBi model is also evaluated with interpolation."""
    run = load_experiment(
        ["configs/runs/c4_125m.gin", "configs/positions/alibi.gin"], ["VOCABULARY=bytes"]
    )
    (tmp_path / "config.gin").write_text(run.text())
    files = [str(tmp_path / "config.gin"), "configs/tasks/gov_report_rouge.gin"]
    variants = []
    for bindings in ([], ["ALiBi.interpolate=True"]):
        changed = load_experiment(files, bindings)
        assert changed.task.inputs_below == 16384
        variants.append(variant_of(run, changed, tmp_path))
    assert variants[0] == "" and variants[1]


def test_a_finetuned_run_is_evaluated_where_its_data_was(tmp_path):
    arguments = ["finetune", "--gin_file=configs/finetune/scrolls_qasper.gin", *MODEL]
    config = experiment_of([*arguments, "--gin.DATA_DIR=here"])
    (tmp_path / "config.gin").write_text(config.text())
    files = [str(tmp_path / "config.gin"), "configs/tasks/scrolls_qasper.gin"]
    asked: TextEvaluation = load_experiment(files).task
    assert asked.data.data_dir == "here" and asked.data.name == "fire_lm:scrolls_qasper"


@pytest.mark.parametrize(
    "trained, given, truncation",
    [
        ([], [], "head"),
        ([], ["TRUNCATION=middle"], "middle"),
        (["TRUNCATION=tail"], [], "tail"),
        (["TRUNCATION=tail"], ["TRUNCATION=middle"], "middle"),
        (["TextToText.truncation=tail"], [], "tail"),
    ],
)
def test_inputs_are_truncated_as_in_finetuning_unless_another_way_is_given(
    trained, given, truncation, tmp_path
):
    arguments = ["finetune", "--gin_file=configs/finetune/base.gin", *MODEL]
    bindings = ["TASK=pairs", "TARGET_LENGTH=6", "TRAIN_LENGTH=16", "BATCH_SIZE=4", *trained]
    config = experiment_of([*arguments, *(f"--gin.{one}" for one in bindings)])
    (tmp_path / "config.gin").write_text(config.text())
    files = [str(tmp_path / "config.gin"), "configs/tasks/base.gin"]
    asked: TextEvaluation = load_experiment(files, ["EVAL_LENGTHS=(8,)", *given]).task
    assert asked.data.truncation == truncation


def test_a_pretrained_run_has_a_truncation_as_well():
    files = ["configs/runs/c4_125m.gin", "configs/positions/fire.gin", "configs/tasks/base.gin"]
    task = ["VOCABULARY=bytes", "TASK=pairs", "TARGET_LENGTH=6", "EVAL_LENGTHS=(8,)"]
    for given, truncation in (([], "head"), (["TRUNCATION=tail"], "tail")):
        asked: TextEvaluation = load_experiment(files, [*task, *given]).task
        assert asked.data.truncation == truncation
