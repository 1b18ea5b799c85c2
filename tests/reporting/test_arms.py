"""The names of arms: which runs count as seeds of one model."""

from collections.abc import Sequence
from pathlib import Path

from etils import epath

from fire_lm.data.blocks import manifest
from fire_lm.data.blocks.manifest import Identity, Manifest
from fire_lm.data.spec import EMBEDDED_MANIFEST
from fire_lm.errors import UserError
from fire_lm.experiment import Difference, load_experiment
from fire_lm.reporting import history
from fire_lm.reporting.arms import arm_names, differing, scored_models
from fire_lm.reporting.gather import trained_tasks
from fire_lm.results.folder import Setting
from fire_lm.results.tables import TaskScore


def configs(*runs: tuple[str, str, tuple[str, ...]]):
    quickstart = "configs/runs/quickstart.gin"
    return {
        name: load_experiment([quickstart, f"configs/positions/{position}.gin"], bindings)
        for name, position, bindings in runs
    }


def test_runs_of_one_name_differ_by_their_seed_alone():
    found = configs(
        ("a", "fire", ("SEED=0",)),
        ("b", "fire", ("SEED=1", "Checkpointing.save_every=7")),
        ("c", "fire_g", ("SEED=0",)),
        ("d", "rope", ("AdamW.learning_rate=2e-3",)),
    )
    settings = differing(found)
    named = {(s.name, s.run): s.value for s in settings}
    assert named["pretrain.seed", "b"] == "1"
    assert named["build_decoder.position", "d"] == "'@RoPE'"
    assert named["FIRE.init_gamma", "a"] == "None" and ("FIRE.init_gamma", "d") not in named
    assert not any(s.name.startswith(("size_tiny", "FIRE.width")) for s in settings), "are the same"
    names = arm_names(found, settings)
    assert names == {"a": "fire", "b": "fire", "c": "fire_g", "d": "rope"}


def test_runs_of_one_encoding_are_told_apart_by_what_differs():
    found = configs(
        ("a", "fire", ("SEED=0",)),
        ("b", "fire", ("AdamW.learning_rate=2e-3",)),
        ("c", "rope", ("TRAIN_STEPS=7",)),
    )
    names = arm_names(found, differing(found))
    assert names == {
        "a": "fire, learning_rate 0.004",
        "b": "fire, learning_rate 0.002",
        "c": "rope",
    }


def test_scopes_are_named_where_they_tell_two_arms_apart():
    files = ["configs/runs/quickstart.gin", "configs/positions/swan.gin"]
    layers = ("size_tiny.num_layers=4",)
    found = {
        run: load_experiment(files, (*layers, *bindings))
        for run, bindings in (
            ("a", ("SEED=0", "local/Layers.window=16")),
            ("b", ("SEED=1", "local/Layers.window=None", "global/Layers.window=16")),
        )
    }
    assert arm_names(found, differing(found)) == {
        "a": "swan, local/Layers.window 16",
        "b": "swan, global/Layers.window 16",
    }


def test_what_is_off_is_not_in_a_name():
    found = configs(
        ("a", "rope", ("SEED=0",)),
        ("b", "rope", ("build_decoder.log_n=@LogN()",)),
        ("c", "rope", ("build_decoder.resampling=@ExponentialPositions()",)),
    )
    assert arm_names(found, differing(found)) == {
        "a": "rope",
        "b": "rope, log_n LogN",
        "c": "rope, resampling ExponentialPositions",
    }


def test_a_macro_that_sets_two_parameters_of_one_name_is_named_once():
    found = configs(
        ("a", "fire", ("TRAIN_LENGTH=64", "build_decoder.train_length=64")),
        ("b", "fire", ("TRAIN_LENGTH=256", "build_decoder.train_length=256")),
    )
    names = arm_names(found, differing(found))
    assert names["a"].count("train_length 64") == 1, names


def test_what_a_macro_binds_in_one_run_and_another_itself_differs():
    """The paper's rows bind settings by macros of their own."""
    files = ["configs/paper/base_nope.gin", "configs/scales/mini.gin"]
    found = {
        "a": load_experiment(files, ("SEED=0",)),
        "b": load_experiment(files, ("SEED=1", "TRAIN_STEPS=8", "AdamW.learning_rate=1e-2")),
        "c": load_experiment(files, ("SEED=1", "DATA_DIR=/elsewhere", "MeshShape.data=4")),
    }
    names = arm_names(found, differing(found))
    assert names["b"] == "nope, train_steps 8, learning_rate 0.01"
    assert names["a"] == names["c"] == "nope, train_steps 1000, learning_rate 0.004"


def test_runs_on_other_texts_of_one_setting_are_told_apart(tmp_path):
    """Only the path of `Blocks` identifies their text, but two paths may have the same text."""
    for folder, label in (("c4", "c4"), ("moved/c4", "c4"), ("arxiv", "arxiv")):
        identity = Identity(f"{label}:1.0.0", label, "bytes", "bytes", 384, None, 64)
        (tmp_path / folder).mkdir(parents=True)
        manifest.write(str(tmp_path / folder), Manifest(identity, {}))

    def names(*texts: Path, blocks: bool = True, bindings: Sequence[str] = ()) -> list[str]:
        files = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
        files += ["configs/data/blocks.gin"] * blocks
        found = {
            str(seed): load_experiment(files, (f"SEED={seed}", f"DATA_DIR={text}", *bindings))
            for seed, text in enumerate(texts)
        }
        return list(arm_names(found, differing(found)).values())

    c4, moved, arxiv = (tmp_path / name for name in ("c4", "moved/c4", "arxiv"))
    assert names(c4, moved) == ["fire", "fire"]
    assert names(c4, arxiv, moved) == ["fire, c4", "fire, arxiv", "fire, c4"]
    gone = Path("/elsewhere/blocks"), Path("/elsewhere/other")
    assert names(*gone) == [f"fire, {path}" for path in gone]
    for data_dir in (c4, arxiv):
        (data_dir / "c4" / "en").mkdir(parents=True)
    (arxiv / EMBEDDED_MANIFEST).touch()
    assert names(c4, arxiv, blocks=False) == ["fire, c4", "fire, embedded"]
    assert names(c4, arxiv / "gone", blocks=False) == ["fire", "fire"]
    (c4 / "lm1b").mkdir()
    mixture = ["TextData.mixture=(('c4/en:3.1.0', 1.0), ('lm1b:1.1.0', 1.0))"]
    assert names(c4, arxiv / "gone", blocks=False, bindings=mixture) == ["fire", "fire"]


def test_seeds_that_continue_other_seeds_are_of_one_name():
    files = ["configs/paper/base_rope_pi.gin", "configs/scales/mini.gin"]
    runs = {
        str(seed): load_experiment(files, (f"SEED={seed}", f"INIT_FROM=runs/rope-{seed}"))
        for seed in range(2)
    }
    assert set(arm_names(runs, differing(runs)).values()) == {"rope_pi"}
    runs["alone"] = load_experiment(files, ("INIT_FROM=''",))
    names = arm_names(runs, differing(runs))
    assert names["0"] == names["1"] == "rope_pi, init_from a run" != names["alone"]
    runs["1"] = load_experiment(files, ("SEED=1", "INIT_FROM=runs/rope-1@100"))
    assert arm_names(runs, differing(runs))["1"] == "rope_pi, init_from a run@100"


def test_arms_of_synthetic_tasks_have_one_name_on_all_tasks():
    def on(task: str, *bindings: str):
        return load_experiment(
            [f"configs/synthetic/{task}.gin", "configs/positions/rope.gin"], bindings
        )

    exponential = "build_decoder.resampling=@ExponentialPositions()"
    found = trained_tasks(
        {
            "even": on("even_pairs"),
            "even-1": on("even_pairs", "SEED=1"),
            "even_drawn": on("even_pairs", exponential),
            "passkey_drawn": on("passkey", exponential),
            "recall": on("recall", "TRAIN_STEPS=9"),  # the other tasks have other steps
            "flip": on("flip_flop"),
            "flip_short": on("flip_flop", "Synthetic.max_length=20"),
        }
    )
    drawn = "rope, resampling ExponentialPositions"
    assert {task.run: task.name for task in found} == {
        "even": "rope", "even-1": "rope", "even_drawn": drawn, "passkey_drawn": drawn,
        "recall": "rope", "flip": "rope, max_length 40", "flip_short": "rope, max_length 20",
    }  # fmt: skip
    assert {task.run: task.max_length for task in found}["recall"] == 64


def test_what_a_setting_was_before_is_in_the_name(monkeypatch):
    """Two runs with the same last change are seeds of one arm only if both had it alone."""
    found = configs(("a", "fire", ("SEED=0",)), ("b", "fire", ("SEED=1",)))
    saved = {"a": [(0, 0.1), (5, 0.2), (9, 0.3)], "b": [(0, 0.2), (9, 0.3)]}
    monkeypatch.setattr(history, "read_history", lambda path: saved[path.name])
    rate = "AdamW.learning_rate"
    monkeypatch.setattr(history, "changes", lambda _, old, __: [Difference(rate, old, 0.3)])
    places = {run: epath.Path(run) for run in found}
    earlier = history.earlier_settings(places, found)
    assert [(one.run, one.value) for one in earlier] == [
        ("a", "0.1 until step 5, 0.2 until step 9"),
        ("b", "0.2 until step 9"),
    ]
    names = arm_names(found, [*differing(found), *earlier])
    assert names["a"] == "fire, learning_rate 0.1 until step 5, 0.2 until step 9" != names["b"]


def test_the_changes_of_a_run_are_in_its_name_in_every_table():
    """Its accuracies and scores are no seeds of the others' either."""
    own = configs(("a", "fire", ("SEED=0",)), ("b", "fire", ("SEED=1",)))
    changed = [Setting("b", "earlier.learning_rate", "0.1 until step 5")]
    where = ("suite", "task", "test", 64, 8, "head", "greedy", 72, "f1", 9, 50.0, 1.0)
    scores = [TaskScore(run, "fire", "", 5, *where) for run in own]
    names = [model.name for model in scored_models(own, scores, changed)]
    assert names == ["fire", "fire, learning_rate 0.1 until step 5"]
    task = load_experiment(["configs/synthetic/recall.gin", "configs/positions/rope.gin"])
    tasks = trained_tasks({"a": task, "b": task.with_values({"pretrain.seed": 1}, "")}, changed)
    assert [one.name for one in tasks] == ["rope", "rope, learning_rate 0.1 until step 5"]


def test_runs_are_seeds_of_one_arm_only_if_their_sources_are(monkeypatch, capsys):
    sources = configs(
        ("short-0", "rope", ("SEED=0", "TRAIN_STEPS=100")),
        ("short-1", "rope", ("SEED=1", "TRAIN_STEPS=100")),
        ("long-0", "rope", ("SEED=2", "TRAIN_STEPS=500")),
    )
    found = configs(
        *((f"from-{name}", "rope", (f"SEED={seed}", f"INIT_FROM='{seed}/{name}@100'"))
          for seed, name in enumerate(sources))
    )  # fmt: skip
    monkeypatch.setattr(history, "saved_experiment", lambda path: sources[path.name])
    names = arm_names(found, [*differing(found), *history.source_settings(found)])
    one = "rope, source train_steps 100"
    assert [*names.values()] == [one, one, "rope, source train_steps 500"]

    sources.clear()  # a copy of the runs elsewhere

    def gone(path):
        raise UserError(f"{path} is gone")

    monkeypatch.setattr(history, "saved_experiment", gone)
    assert history.source_settings(found) == []
    assert "the runs from which from-short-0, " in capsys.readouterr().err
