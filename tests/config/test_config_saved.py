"""The saved text of a configuration: complete, readable again, and compared with another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sample_config import BASE, FIRE_GIN, ROPE_GIN, load, outcome

from fire_lm import config
from fire_lm.errors import UserError
from fire_lm.experiment import ABSENT, Experiment
from fire_lm.runs.saved import read_history, save_config

AWKWARD = ["", "a'b", 'a"b', "a\\b", "a\nb", "%x", "@y", "é…\udcff", "# no comment", "  ", "None"]


def test_text_loads_into_an_equal_configuration(tmp_path):
    for extra in [
        (),
        ("DATA_DIR=gs://bucket/x", "TRAIN_STEPS=5"),
        ("DATA_DIR=007", "EVAL_LENGTHS=512"),
        ("eval/FIRE.init_length=3", "length_sweep.decoder=@eval/build_decoder()"),
        ("STEPS=1e3", "TRAIN_STEPS=%STEPS", "pretrain.lengths=(%STEPS,)"),
    ]:
        first = load(tmp_path, *extra)
        again = load(tmp_path, only=first.text())
        assert again == first and again.text() == first.text()
        assert outcome(again) == outcome(first)
        assert Experiment("pretrain", again).differences_from(Experiment("pretrain", first)) == []
        assert first != load(tmp_path, *extra, "pretrain.learning_rate=0.5")


@pytest.mark.parametrize("text", AWKWARD)
def test_text_keeps_awkward_strings(tmp_path, text):
    loaded = load(tmp_path, f"DATA_DIR={text!r}")
    again = load(tmp_path, only=loaded.text())
    assert outcome(again)[0]["data"].directory == text


def test_text_is_complete_and_as_written(tmp_path):
    lines = load(tmp_path, "DATA_DIR=a/b").text().splitlines()
    assert {
        "TRAIN_STEPS = 6e5",
        "DATA_DIR = 'a/b'",
        "POSITION = @FIRE",
        "pretrain.steps = %TRAIN_STEPS",
        "pretrain.lengths = ()",
        "eval/TextData.batch = 2",
        "FIRE.hidden_layers = (32,)",
        "FIRE.init_length = 512.0",
    } <= set(lines)
    assert not any(
        line.startswith(("FIRE.num_heads", "RoPE", "pretrain.workdir")) for line in lines
    )


def test_text_does_not_depend_on_the_order_of_statements(tmp_path):
    reversed_base = "\n".join(reversed(BASE.splitlines()))
    assert load(tmp_path, fire=FIRE_GIN, base=reversed_base).text() == load(tmp_path).text()


def test_text_leaves_out_defaults_that_gin_cannot_write():
    def f(
        a=float("inf"),
        b=print,
        c: tuple[int, ...] = [1],  # type: ignore[assignment]  # noqa: B006
        d: int = None,  # type: ignore[assignment]
        e=(1, ("k", [2.5])),
        f={"k": 1},  # noqa: B006
    ):
        return a, b, c, d, e, f

    loaded = config.load(config.read([], [], []), configurables={"f": f}, roots=["f"])
    body = [line for line in loaded.text().splitlines() if line and not line.startswith("#")]
    assert body == ["f.d = None", "f.e = (1, ('k', [2.5]))"]


# --- Differences


def difference(folder: Path, old: config.Config, *new: str, **files: str) -> list[Any]:
    changed = Experiment("pretrain", load(folder, *new, **files))
    return [tuple(one) for one in changed.differences_from(Experiment("pretrain", old))]


def test_differences_are_named_as_the_user_would_bind_them(tmp_path):
    old = load(tmp_path)
    assert difference(tmp_path, old, "TRAIN_STEPS=5") == [("TRAIN_STEPS", 600_000, 5)]
    assert difference(tmp_path, old, "pretrain.steps=5") == [("pretrain.steps", 600_000, 5)]
    assert difference(tmp_path, old, "FIRE.hidden_layers=4") == [
        ("FIRE.hidden_layers", (32,), (4,))
    ]
    rope = {"base": BASE, "rope": ROPE_GIN}
    assert difference(tmp_path, old, **rope) == [("POSITION", "@FIRE", "@RoPE")]


def test_what_makes_no_difference(tmp_path):
    old = load(tmp_path)
    assert difference(tmp_path, old, "TRAIN_STEPS=600_000") == []
    assert difference(tmp_path, old, "N=600000", "TRAIN_STEPS=%N") == []
    assert difference(tmp_path, old, "pretrain.lengths=[]") == []
    assert difference(tmp_path, old, "EVAL_LENGTHS=3", "eval/TextData.batch=3") == []


def test_a_value_that_was_lost_is_a_difference(tmp_path):
    """A damaged file may lack a parameter that has no default."""
    lines = load(tmp_path).text().splitlines()
    old = load(tmp_path, only="\n".join(line for line in lines if "TRAIN_STEPS" not in line))
    assert difference(tmp_path, old) == [("TRAIN_STEPS", ABSENT, 600_000)]


# --- Saving


def test_every_start_saves_its_own_file(tmp_path):
    first, second = (
        Experiment("pretrain", load(tmp_path, *more)) for more in ((), ("TRAIN_STEPS=5",))
    )
    run = tmp_path / "runs" / "a"
    names = [save_config(c, run).name for c in (first, second, first)]
    assert names == ["config.gin", "config_1.gin", "config_2.gin"]
    assert sorted(os.listdir(run)) == [*names, "inputs.json"]
    assert [(run / name).read_text() for name in names] == [
        first.text(),
        second.text(),
        first.text(),
    ]


def test_the_history_of_a_run_has_the_settings_of_the_steps_that_it_kept(tmp_path):
    """A run may be rolled back to a step before its settings changed."""
    old, new = (Experiment("pretrain", load(tmp_path, *more)) for more in ((), ("TRAIN_STEPS=5",)))
    run = tmp_path / "run"

    def history_after(experiment, step):
        save_config(experiment, run, step)
        return [(since, saved.path.name) for since, saved in read_history(run)]

    assert history_after(old, 0) == [(0, "config.gin")]
    assert history_after(old, 7) == [(0, "config_1.gin")], "the same settings again"
    assert history_after(new, 15) == [(0, "config_1.gin"), (15, "config_2.gin")]
    assert history_after(new, 20) == [(0, "config_1.gin"), (15, "config_3.gin")]
    assert history_after(old, 10) == [(0, "config_4.gin")]
    assert read_history(run)[0][1].settings == old.text()


def test_an_unwritable_workdir_is_told(tmp_path):
    loaded = Experiment("pretrain", load(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the configuration to "):
        save_config(loaded, tmp_path / "file" / "run")
