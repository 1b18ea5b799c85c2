"""A run that has begun keeps its derived name, although names now contain more settings."""

import pytest

from fire_lm.experiment import load_experiment
from fire_lm.runs.resuming import Start
from fire_lm.runs.saved import read_saved, save_config

BOTH = ("Together.first=@FIRE", "Together.second=@FoX")
SCHEDULE = ("POSITION=[@near/Layers(), @NoPE]", "near/Layers.encoding=@Together")


def start(tmp_path, bindings, old_name):
    """Return the start of a run that began under another name."""
    files = ["configs/runs/quickstart.gin"]
    old = load_experiment(files, [*bindings, f"ENCODING='{old_name}'"])
    save_config(old, str(tmp_path))
    return Start(load_experiment(files, [*bindings]), str(tmp_path), read_saved(str(tmp_path)))


@pytest.mark.parametrize(
    "bindings, old_name, derived",
    [
        (["POSITION=@Together"], "Together", "Together-first-fire-second-fox"),
        (SCHEDULE, "Together+nope", "Together-first-fire-second-fox+nope"),
        (
            [*SCHEDULE, "near/Layers.window=16"],
            "Together-window-16+nope",
            "Together-first-fire-second-fox-window-16+nope",
        ),
    ],
)
def test_a_run_that_has_begun_keeps_its_name(bindings, old_name, derived, tmp_path):
    begun = start(tmp_path, (*BOTH, *bindings), old_name)
    assert begun.stated.label == derived
    assert begun.experiment.label == old_name
    begun.check_same_experiment(begun.begun)


@pytest.mark.parametrize("old_name", ["fox", "nope+Together", "Together+nope", "first"])
def test_a_name_that_is_not_an_earlier_form_is_not_kept(old_name, tmp_path):
    begun = start(tmp_path, (*BOTH, "POSITION=@Together"), old_name)
    assert begun.experiment.label == begun.stated.label
