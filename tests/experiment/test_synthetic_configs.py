"""configs/synthetic/: each file configures a run of its task with no more columns than it needs."""

from pathlib import Path

import pytest

from fire_lm import data
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.tasks.synthetic import CHOMSKY
from fire_lm.tasks.synthetic.layouts import longest_row, vocabulary_size

FOLDER = Path(__file__).parents[2] / "configs" / "synthetic"
TASKS = sorted(path.stem for path in FOLDER.glob("*.gin") if path.stem != "base")


def loaded(task, *bindings):
    files = [f"configs/synthetic/{task}.gin", "configs/positions/nope.gin"]
    return load_experiment(files, bindings)


@pytest.mark.parametrize("task", TASKS)
def test_a_file_is_a_run_of_its_task(task):
    run = loaded(task).train
    assert run.data.title.lower() == task.replace("_", "")
    assert run.train_length == longest_row(run.data.task, run.data.layout, run.data.max_length)
    assert run.model.vocab_size == vocabulary_size(run.data.task)
    batch = next(data.train_iterator(run.data, length=run.train_length, batch_size=2, seed=0))
    assert batch["weights"].sum()


def test_the_benchmark_is_whole():
    assert {task.__name__.lower() for task in CHOMSKY} <= {name.replace("_", "") for name in TASKS}


def test_fields_of_a_task_are_set_on_the_command_line():
    run = loaded("odds_first", "OddsFirst.variant = 'text'", "Synthetic.layout = 'autoregressive'")
    data_of_run = run.train.data
    assert data_of_run.task.variant == "text" and data_of_run.layout == "autoregressive"
    with pytest.raises(UserError, match="OddsFirst.variant"):
        str(loaded("odds_first", "OddsFirst.variant = 'both'").train)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_benchmarks_size_for_any_task(kind):
    files = [
        f"configs/{name}.gin" for name in ("synthetic/odds_first", "positions/rope", f"che/{kind}")
    ]
    run = load_experiment(files).train
    assert [turn.causal for turn in run.model.turns] == [kind == "decoder"]
    size = run.model.size
    assert (size.num_layers, size.hidden_size, size.num_heads, size.head_dim) == (5, 64, 8, 8)
    assert run.batch_size == 128 and run.data.layout == "slots"
