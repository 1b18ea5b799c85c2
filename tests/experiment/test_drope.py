"""DroPE's recipe: the run that it starts from and the run that continues differ in RoPE alone."""

import jax
from gin_files import CONFIGS

from fire_lm.experiment import load_experiment
from fire_lm.measures.scoring import parameter_shapes
from fire_lm.models import changes
from fire_lm.positions.nope import NoPE


def test_the_recipe_continues_the_quick_start_without_rope():
    before, after = (
        load_experiment([str(CONFIGS / f"{name}.gin") for name in names], ["DATA_DIR=data"])
        for names in (("runs/quickstart", "positions/rope"), ("drope/quickstart",))
    )
    assert after.label == "drope" and after.macro("INIT_FROM") == "runs/rope"
    runs = [experiment.train for experiment in (before, after)]
    assert runs[1].train_steps == 0.02 * runs[0].train_steps
    assert runs[1].train_length == runs[0].train_length and runs[1].seed != runs[0].seed
    assert isinstance(runs[1].model.encodings[0], NoPE)
    changed = changes(runs[0].model, runs[1].model)
    assert all(name.split(".")[0] == "position" for name in changed) and changed
    shapes = [jax.tree.map(lambda x: x.shape, parameter_shapes(run.model)) for run in runs]
    assert shapes[0] == shapes[1], "RoPE has no parameters"
