"""The search for settings with which a task is learned."""

import csv
import dataclasses

import learnable
import pytest


@pytest.fixture
def tried(monkeypatch):
    """Let every second setting learn, and return the tries."""
    made = []

    def attempt(task, model, encoding, seed, setting, run):
        made.append((task, model, setting, run.name))
        accuracy = 96.0 if setting is learnable.SETTINGS[1] else 50.0
        values = dataclasses.astuple(setting)
        return learnable.Try(task, model, encoding, seed, *values, accuracy, accuracy >= 95)

    monkeypatch.setattr(learnable, "attempt", attempt)
    return made


def test_a_task_gets_settings_until_it_is_learned(tried, tmp_path):
    learnable.main(["even_pairs", "odds_first", "--models=encoder", f"--output={tmp_path}"])
    with (tmp_path / "search.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["learned"]) for row in rows] == [
        ("even_pairs", "False"),
        ("odds_first", "False"),
        ("even_pairs", "True"),
        ("odds_first", "True"),
    ]
    assert {row["seed"] for row in rows} == {"1000"}
    assert len({name for *_, name in tried}) == 4, "each try has a run directory of its own"


def test_a_search_keeps_the_tries_of_other_tasks(tried, tmp_path):
    for tasks in (["even_pairs"], ["odds_first"], ["even_pairs"]):
        learnable.main([*tasks, "--models=encoder", f"--output={tmp_path}"])
    with (tmp_path / "search.csv").open() as file:
        found = [(row["task"], row["learned"]) for row in csv.DictReader(file)]
    one, other = ([(name, "False"), (name, "True")] for name in ("even_pairs", "odds_first"))
    assert found == one + other
    learnable.main(["even_pairs", "--models=encoder", "--positions=fire", f"--output={tmp_path}"])
    assert len({name for *_, name in tried}) == 6, "runs of another encoding or seed are others"


def test_two_searches_with_one_folder_keep_the_tries_of_both(tried, tmp_path, monkeypatch):
    alone = learnable.attempt

    def attempt(task, *others):
        if task == "even_pairs":
            learnable.main(["odds_first", "--models=encoder", f"--output={tmp_path}"])
        return alone(task, *others)

    monkeypatch.setattr(learnable, "attempt", attempt)
    learnable.main(["even_pairs", "--models=encoder", f"--output={tmp_path}"])
    with (tmp_path / "search.csv").open() as file:
        assert {row["task"] for row in csv.DictReader(file)} == {"even_pairs", "odds_first"}


def test_a_task_or_model_without_a_file_is_refused_before_training(tried, tmp_path):
    for arguments in (["even_pair"], ["even_pairs", "--models=encoders"]):
        with pytest.raises(learnable.UserError, match="there is no configs/"):
            learnable.main([*arguments, f"--output={tmp_path}"])
    assert not tried
