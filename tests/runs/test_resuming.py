"""What may change when a run continues, and what a change leaves of its results."""

import pytest
from etils import epath

from fire_lm import training
from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.results.tables import remove_later_rows
from fire_lm.runs import resuming
from fire_lm.runs.changed import other_parameters
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config

FILES = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return a function that checks whether a run at step 20 of 20 may continue otherwise."""
    save_config(load_experiment(FILES, ["TRAIN_STEPS=20", "AdamW.warmup_steps=1"]), tmp_path)
    monkeypatch.setattr(resuming, "available_steps", lambda _: [10, 20])

    def check(*bindings, allowed=True):
        experiment = load_experiment(FILES, ["TRAIN_STEPS=20", "AdamW.warmup_steps=1", *bindings])
        begun = read_saved(tmp_path)
        Start(experiment, str(tmp_path), begun, allowed).check_same_experiment(begun)

    return check


def test_other_settings_of_a_finished_run_are_refused(check):
    """They would have no effect, and a grid would take the run for one with these settings."""
    told = "has reached step 20 of 20, so other settings have no effect"
    with pytest.raises(UserError, match=rf"{told} \(AdamW.learning_rate: 0.004 -> 1e-05\)"):
        check("AdamW.learning_rate=1e-5")
    with pytest.raises(UserError, match=r"has reached step 20 of 10, .* \(TRAIN_STEPS: 20 -> 10\)"):
        check("TRAIN_STEPS=10")
    check("AdamW.learning_rate=1e-5", "TRAIN_STEPS=30")
    check("MeshShape.fsdp=2", "build_decoder.remat='full'", "pretrain.log_every=7")


@pytest.mark.parametrize("allowed", [False, True])
def test_another_source_of_a_run_that_has_begun_is_refused(check, allowed):
    """The saved configuration would say that the run began with its parameters."""
    told = "has reached step 20, so another INIT_FROM has no effect"
    with pytest.raises(UserError, match=rf"{told} \(INIT_FROM: '' -> 'runs/a'\)"):
        check("INIT_FROM='runs/a'", "TRAIN_STEPS=30", allowed=allowed)


def test_more_steps_may_lead_to_other_parameters(tmp_path):
    """The learning rate may follow the number of steps, so rows of discarded steps do not hold."""
    save_config(load_experiment(FILES), tmp_path)
    begun = read_saved(tmp_path)
    assert begun is not None
    for bindings, other in (
        ([], False),
        (["TRAIN_STEPS=2000"], True),
        (["AdamW.learning_rate=1e-5"], True),
        (["MeshShape.fsdp=2", "pretrain.microbatches=2", "pretrain.log_every=7"], False),
    ):
        assert other_parameters(load_experiment(FILES, bindings), begun) == other, bindings


def test_a_changed_module_is_reported_when_a_run_resumes(tmp_path, monkeypatch, capsys):
    """The record of the module is then replaced, so nothing else would tell."""
    module = "import dataclasses\n\n\n@dataclasses.dataclass\nclass Mine:\n    x: int = 0\n"
    (tmp_path / "module_of_mine.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    save_config(load_experiment(FILES, imports=["module_of_mine"]), run)
    (tmp_path / "module_of_mine.py").write_text(f"{module}# changed")
    monkeypatch.setattr(resuming, "available_steps", lambda _: [5])
    monkeypatch.setattr(training, "pretrain", lambda *_, **__: None)
    flags = [f"--gin_file={file}" for file in FILES]
    assert main(["pretrain", *flags, "--import=module_of_mine", f"--workdir={run}"]) == 0
    assert "module_of_mine.py) has changed since" in capsys.readouterr().err


def test_rows_of_later_steps_are_removed_from_a_table(tmp_path):
    path = epath.Path(tmp_path) / "t.csv"
    table = 'run,step,text\na,10,"x, y"\na,20,z\n'
    path.write_text(f"{table}a,1")  # a write was interrupted
    assert not remove_later_rows(path, 20) and path.read_text() == f"{table}a,1"
    assert remove_later_rows(path, 10) and path.read_text() == 'run,step,text\na,10,"x, y"\n'
    path.write_text("run,length\na,30\n")
    assert not remove_later_rows(path, 10)
    assert not remove_later_rows(epath.Path(tmp_path) / "none.csv", 10)
