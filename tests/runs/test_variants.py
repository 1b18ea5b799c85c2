"""Changes to a run's configuration on the command line of a verb that evaluates the run."""

import argparse

import pytest

from fire_lm.cli import parse
from fire_lm.cli.sweep import Sweep
from fire_lm.experiment import UnusedBinding, load_experiment, read_gin
from fire_lm.runs.saved import save_config, saved_experiment
from fire_lm.runs.variants import experiment_at_evaluation, uses_of
from fire_lm.storage import place
from fire_lm.sweeps.settings import resolved_settings

FILES = ["configs/runs/quickstart.gin", "configs/positions/rope.gin"]
VERBS = {
    "sweep": ["sweep", "RUN"],
    "generate": ["generate", "RUN", "--prompt=a"],
    "export": ["export", "RUN", "--output=x"],
    "evaluate": ["evaluate", "RUN"],
    "tasks": ["evaluate", "RUN", "--gin_file=configs/tasks/base.gin", "--gin.TASK=a",
              "--gin.TARGET_LENGTH=9"],
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    save_config(load_experiment(FILES), folder / "text")
    task = ["configs/synthetic/reverse_string.gin", FILES[1]]
    save_config(load_experiment(task), folder / "task")
    return folder


@pytest.mark.parametrize(
    "verb, used, unused",
    [
        (
            "sweep",
            "EVAL_LENGTHS DATA_DIR TextData.tfds_name RoPE.base VOCABULARY CONSTRUCTION",
            "TRAIN_STEPS AdamW.warmup_steps pretrain.seed SEED INIT_FROM Checkpointing.keep_last",
        ),
        ("generate", "VOCABULARY RoPE.base TRAIN_LENGTH", "SEED EVAL_LENGTHS TRAIN_STEPS"),
        ("export", "VOCABULARY RoPE.base", "length_sweep.stride TRAIN_STEPS"),
        ("evaluate", "EVAL_LENGTHS Synthetic.max_length", "BATCH_SIZE length_sweep.split SEED"),
        ("tasks", "EVAL_LENGTHS TARGET_LENGTH TASK", "SEED length_sweep.stride"),
    ],
)
def test_what_a_verb_uses(verb, used, unused, runs):
    arguments = parse(VERBS[verb])
    experiment, _ = experiment_at_evaluation(
        arguments, place(runs / ("task" if verb == "evaluate" else "text"))
    )
    stated = read_gin(arguments.gin_file, arguments.bindings)
    uses = uses_of(arguments.verb, stated, experiment)
    needed = {str(key) for key in experiment._config.bindings.needed(uses)}
    assert needed >= set(used.split()) and not needed & set(unused.split())


def test_a_binding_that_the_verb_does_not_use_is_refused(runs):
    arguments = parse([*VERBS["sweep"], "--gin.TRAIN_STEPS=5"])
    with pytest.raises(UnusedBinding) as error:
        experiment_at_evaluation(arguments, place(runs / "text"))
    assert str(error.value) == (
        "--gin.TRAIN_STEPS=5: sweep does not use TRAIN_STEPS, so this binding has no effect: "
        "remove it"
    )


def test_files_may_contain_bindings_for_other_verbs(runs, tmp_path):
    (tmp_path / "more.gin").write_text("TRAIN_STEPS = 5\n")
    arguments = parse(["sweep", "RUN", f"--gin_file={tmp_path}/more.gin"])
    assert experiment_at_evaluation(arguments, place(runs / "text"))[0].macro("TRAIN_STEPS") == 5


@pytest.mark.ci
def test_an_also_without_effect_is_skipped_and_reported(runs):
    arguments: argparse.Namespace = parse(["sweep", "RUN", "--also=--gin.TRAIN_STEPS=5"])
    found, idle = resolved_settings(Sweep(arguments).measure_of, arguments, place(runs / "text"))
    assert len(found) == 1 and "sweep does not use TRAIN_STEPS" in idle["--gin.TRAIN_STEPS=5"]


def test_an_evaluation_without_changes_does_not_resolve_the_configuration_again(tmp_path):
    """Its experiment is the saved one, unless a binding or a moved folder changes it."""
    run = place(tmp_path)
    save_config(load_experiment(FILES, [f"DATA_DIR={tmp_path}"]), run)
    trained = saved_experiment(run)
    experiment, variant = experiment_at_evaluation(parse(VERBS["sweep"]), run)
    assert experiment is trained and variant == ""
    changed, variant = experiment_at_evaluation(
        parse([*VERBS["sweep"], "--gin.RoPE.scaling=@YaRN()"]), run
    )
    assert changed is not trained and variant == "yarn"
