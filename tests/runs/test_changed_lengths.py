"""Which length schedules a run may resume with, and what the other commands read from them."""

import dataclasses
from pathlib import Path

import pytest
from sample_run import command
from training_experiments import experiment_of

from fire_lm.errors import UserError
from fire_lm.models import lengths
from fire_lm.reporting.arms import arm_names, differing
from fire_lm.reporting.gather import run_facts
from fire_lm.runs import resuming
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config

TEXT = Path("text")  # which is not read
OLD = "((0, 32), (0.75, 64))"  # of 12 steps: the length changes after step 9


@pytest.fixture
def resumed(tmp_path, monkeypatch):
    """Return a function that resumes a run with this schedule, whose newest step it is given."""
    save_config(experiment_of(command(TEXT, "run", f"--gin.TRAIN_LENGTHS={OLD}")), str(tmp_path))

    def resume(newest: int, *bindings: str, allow: bool = False) -> None:
        monkeypatch.setattr(resuming, "available_steps", lambda _: [newest] if newest else [])
        flags = [f"--gin.{binding}" for binding in bindings]
        stated = experiment_of(command(TEXT, tmp_path, f"--gin.TRAIN_LENGTHS={OLD}", *flags))
        Start(stated, str(tmp_path), read_saved(str(tmp_path)), allow).check()

    return resume


def test_the_same_schedule_resumes(resumed):
    for newest in (0, 8, 9, 10, 12):
        resumed(newest)


def test_more_steps_may_not_change_the_lengths_of_the_past(resumed):
    resumed(9, "TRAIN_STEPS=16")  # the change moves to step 12
    for allow in (False, True):
        with pytest.raises(UserError, match="step 10 had rows of 64 .* it would have had 32"):
            resumed(10, "TRAIN_STEPS=16", allow=allow)
    with pytest.raises(UserError, match="another experiment .*TRAIN_LENGTHS"):
        resumed(10, "TRAIN_STEPS=16", "TRAIN_LENGTHS=((0, 32), (9, 64))")
    resumed(10, "TRAIN_STEPS=16", "TRAIN_LENGTHS=((0, 32), (9, 64))", allow=True)


def test_another_schedule_is_another_experiment(resumed):
    for schedule in ("((0, 32), (10, 64))", "()", "((0, 32),)"):
        with pytest.raises(UserError, match=r"TRAIN_LENGTHS: \(\(0, 32\), \(0.75, 64\)\) ->"):
            resumed(8, f"TRAIN_LENGTHS={schedule}")
    with pytest.raises(UserError, match="step 10 had rows of 64"):
        resumed(10, "TRAIN_LENGTHS=()", allow=True)
    resumed(8, "TRAIN_LENGTHS=((0, 32), (10, 64))", allow=True)


def test_a_change_of_the_longest_length_does_not_fit_the_position_in_the_data(resumed):
    with pytest.raises(UserError, match="its checkpoints fit only the same arrays"):
        resumed(8, "TRAIN_LENGTHS=((0, 32), (10, 128))")


def scheduled(*more: str, position: str = "alibi_pi"):
    flags = (f"--gin.TRAIN_LENGTHS={OLD}", *more)
    return experiment_of(command(TEXT, "run", *flags, position=position))


@pytest.mark.parametrize("position", ["fire", "alibi_pi", "rope_yarn", "rope_dynamic_ntk"])
def test_encodings_derive_their_values_from_the_first_length(position):
    plain = experiment_of(command(TEXT, "run", position=position))
    assert scheduled(position=position).model == plain.model
    assert set(lengths(plain.model).values()) & {32, 8.0}


def test_other_commands_read_the_longest_length_that_was_reached():
    run = scheduled().train
    assert (run.trained_length, run.lengths_in_words) == (64, "32, then 64 after 75 %")
    facts = run_facts_of(scheduled())
    assert (facts.train_length, facts.batch_size, facts.trained_at) == (
        *(64, 4),
        "32, then 64 after 75 %",
    )
    early = scheduled("--gin.TRAIN_LENGTHS=((0, 32), (12, 64))").train
    assert early.trained_length == 32


def run_facts_of(experiment):
    from etils import epath

    return dataclasses.replace(run_facts(epath.Path("nowhere"), experiment, "arm", 0), run="run")


def test_reports_keep_runs_of_different_schedules_apart():
    configs = {
        "constant": experiment_of(command(TEXT, "run", position="alibi_pi")),
        "changes": scheduled(),
        "later": scheduled("--gin.TRAIN_LENGTHS=((0, 32), (10, (32, 64)))"),
    }
    assert arm_names(configs, differing(configs)) == {
        "constant": "alibi_pi",
        "changes": "alibi_pi, trained at 32, then 64 after 75 %",
        "later": "alibi_pi, trained at 32, then 32 or 64 after step 10",
    }


def test_finetuning_inherits_the_longest_length_and_as_many_tokens(tmp_path):
    save_config(scheduled(position="fire"), str(tmp_path))
    flags = ("--gin_file=configs/finetune/base.gin", f"--gin.INIT_FROM={tmp_path}")
    task = ("--import=pair_tasks", "--gin.TASK=pairs", "--gin.TARGET_LENGTH=8")
    run = experiment_of(["finetune", *flags, *task]).train
    assert (run.batch_size, run.train_length) == (4, 64)
