"""Recipes that continue a run: what differs between it and the run that continues."""

import jax
from gin_files import CONFIGS

from fire_lm.experiment import load_experiment
from fire_lm.models import changes, parameter_shapes
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope_scaling import YaRN


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


def test_the_extension_scales_rope_in_the_layers_without_a_window_only():
    schedule = [str(CONFIGS / f"{name}.gin") for name in ("runs/quickstart", "positions/gemma")]
    before = load_experiment(schedule, ["DATA_DIR='data'", "size_tiny.num_layers=6"])
    extension = str(CONFIGS / "extend/rope_yarn_full_layers.gin")
    after = load_experiment([extension], ["DATA_DIR='data'"])
    assert after.train.tokens_per_step == before.train.tokens_per_step
    assert after.train.train_length == 4 * before.train.train_length
    assert after.train.train_steps == 0.05 * before.train.train_steps
    kept = after.kept_lengths(before)
    assert kept == {"build_decoder.train_length": 64}, "YaRN is relative to the source's length"
    model = after.with_values(kept, "the source").model
    windows = [turn.window for turn in model.turns]
    assert windows == [16] * 5 + [None]
    scaled = [isinstance(turn.encoding.scaling, YaRN) for turn in model.turns]
    assert scaled == [False] * 5 + [True]
    assert list(changes(before.model, model)) == ["position[5].scaling"]
