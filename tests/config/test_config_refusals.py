"""What configuration refuses, with which message, and where the message locates the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_config import BASE, FIRE_GIN, NO_POSITION, ROPE_GIN, load, outcome

from fire_lm.errors import UserError

FILES = {"base": BASE, "fire": FIRE_GIN}


def refusal(folder: Path, *bindings: str, **files: str) -> str:
    with pytest.raises(UserError) as caught:
        outcome(load(folder, *bindings, **files))
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) <= 2 and not str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    "binding, complaint",
    [
        ("TRAIN_STPES=5", "nothing uses the macro TRAIN_STPES. Did you mean TRAIN_STEPS?"),
        ("train_steps=5", "Did you mean TRAIN_STEPS?"),
        ("TRAIN_STEPS=abc", "TRAIN_STEPS sets pretrain.steps, which expects int, got 'abc'"),
        ("TRAIN.STEPS=5", "there is no configurable TRAIN. Did you mean TRAIN_STEPS?"),
        ("FIER.hidden_layers=5", "there is no configurable FIER. Did you mean FIRE"),
        ("FIRE.hiden_layers=5", "FIRE has no parameter hiden_layers. Did you mean hidden_layers?"),
        ("POSITION=@FIER", "refers to @FIER, which does not exist. Did you mean @FIRE?"),
        ("TextData.batch=%BACH_SIZE", "%BACH_SIZE, which is not set. Did you mean BATCH_SIZE?"),
        ("evl/TextData.batch=5", "never used in the scope evl. Did you mean eval?"),
        ("eval/FIRE.init_length=5", ""),
        ("RoPE.base=3", "nothing in this experiment uses RoPE"),
        ("BATCH_SIZE=%BATCH_SIZE", "the macro BATCH_SIZE refers to itself"),
        ("BATCH_SIZE", "must be of the form --gin.NAME=VALUE"),
        ("BATCH_SIZE=", "no value after '='"),
        ("a b=3", "'a b' is not a valid name"),
        ("pretrain.workdir=x", "the code sets the workdir of pretrain: remove it"),
        ("FIRE.num_heads=8", "the code sets the num_heads of FIRE: remove it"),
        ("BATCH_SIZE=%gin.REQUIRED", "BATCH_SIZE has no value: give one with --gin.BATCH_SIZE"),
    ],
)
def test_command_line_slips_are_told(tmp_path, binding, complaint):
    if not complaint:
        complaint = "FIRE is never used in the scope eval"
    message = refusal(tmp_path, binding)
    assert message.startswith(f"--gin.{binding}: ") and complaint in message


@pytest.mark.parametrize(
    "text, where, complaint",
    [
        ("pretrain.stesp = 5", "more.gin:1", "Did you mean steps?"),
        ("\n\nTRAIN_STEPS 5", "more.gin:3", "cannot read 'TRAIN_STEPS 5'"),
        ("DATA_DIR = gs://a", "more.gin:1", "a string in quotes"),
        ("DATA_DIR = 'a", "more.gin:1", "a string in quotes"),
        ("EVAL_LENGTHS = [1,\n2", "more.gin:", "cannot read"),
        ("X = '''a", "more.gin:", "cannot read"),
        ("TRAIN_STEPS = 5 6", "more.gin:1", "cannot read"),
        ("TRAIN_STEPS = -%BATCH_SIZE", "more.gin:1", "a minus sign must be followed by a number"),
        ("TRAIN_STEPS = 2*3", "more.gin:1", "cannot read"),
        ("DATA_DIR = 'a\\d'", "more.gin:1", "cannot read"),
        ("import os.path", "more.gin:1", "os.path defines no dataclass"),
        ("import os.path as p", "more.gin:1", "names have no module path here"),
        ("from __gin__ import dynamic_registration", "more.gin:1", "names have no module path"),
        ("WIDTHS = {'a': 1}", "more.gin:1", "write pairs: (('a', 1), ('b', 2))"),
        ("positions.FIRE.init_length = 3", "more.gin:1", "Did you mean FIRE?"),
        ("POSITION = @my.long.path.positions.FIRE", "more.gin:1", "Did you mean @FIRE?"),
        ("import no_such_package", "more.gin:1", "add the folder that contains it to PYTHONPATH"),
        ("TRAIN_STEPS = 1\n# no\nTRAIN_STEPS = 2", "more.gin:3", "already set at more.gin:1"),
        ("FIRE:\n  init_length = 1\nFIRE.init_length = 2", "more.gin:3", "already set at"),
        ("include 'nowhere.gin'", "more.gin:1", "there is no gin file 'nowhere.gin'"),
        ("WARMUP = 5", "more.gin:1", "nothing uses the macro WARMUP"),
        ("RoPE.base = 5", "more.gin:1", "nothing in this experiment uses RoPE"),
        ("TextData.vocabulary = %gin.REQUIRED", "more.gin:1", "--gin.TextData.vocabulary=VALUE"),
    ],
)
def test_slips_in_files_are_told(tmp_path, text, where, complaint):
    message = refusal(tmp_path, **FILES, more=text)
    assert message.startswith(where) and complaint in message


def test_idle_bindings_of_an_overridden_choice_are_fine(tmp_path):
    both = load(tmp_path, base=BASE, rope=ROPE_GIN, fire=FIRE_GIN)
    assert both == load(tmp_path)
    message = refusal(tmp_path, "RoPE.base=3", base=BASE, rope=ROPE_GIN, fire=FIRE_GIN)
    assert "nothing in this experiment uses RoPE" in message


def test_a_macro_that_only_an_overridden_binding_uses_is_used(tmp_path):
    loaded = load(tmp_path, "pretrain.steps=3", "TRAIN_STEPS=4")
    assert outcome(loaded)[0]["steps"] == 3
    chain = load(tmp_path, "STEPS=4", "TRAIN_STEPS=%STEPS")
    assert outcome(chain)[0]["steps"] == 4
    assert "nothing uses" in refusal(tmp_path, "A=%B", "B=1")


def test_an_encoding_without_an_experiment_is_told_by_the_hint(tmp_path):
    message = refusal(tmp_path, fire=FIRE_GIN)
    assert message.endswith(
        "\nadd an experiment's gin file, such as --gin_file=configs/runs/quickstart.gin"
    )


def test_a_mistyped_name_without_macros_is_told_with_the_right_one(tmp_path):
    message = refusal(tmp_path, fire="FIRE.init_length = 3\nFIRE_init_length = 4")
    assert message.endswith("Did you mean FIRE.init_length?")


def test_no_encoding_chosen_is_told_by_the_hint(tmp_path):
    assert refusal(tmp_path, base=BASE) == NO_POSITION


@pytest.mark.parametrize("line", ["TextData.vocabulary = 'bytes'", "pretrain.steps = %TRAIN_STEPS"])
def test_a_missing_value_is_told_before_the_call(tmp_path, line):
    key = line.split(" = ")[0]
    base = BASE.replace(line + "\n", "")
    base = base.replace("TRAIN_STEPS = 6e5\n", "") if "TRAIN_STEPS" in line else base
    assert f"{key} has no value" in refusal(tmp_path, base=base, fire=FIRE_GIN)


def test_only_the_verb_that_is_called_needs_its_values(tmp_path):
    base = BASE.replace("length_sweep.lengths = %EVAL_LENGTHS\n", "")
    loaded = load(tmp_path, base=base.replace("EVAL_LENGTHS = [512, 1024]\n", ""), fire=FIRE_GIN)
    loaded.call("pretrain", workdir="w")
    with pytest.raises(UserError, match="length_sweep.lengths has no value"):
        loaded.call("length_sweep")
    assert loaded.call("length_sweep", lengths=(1,))["lengths"] == (1,)


def test_bindings_may_repeat_what_the_code_gives(tmp_path):
    loaded = load(tmp_path, "FIRE.num_heads=4", "pretrain.dry_run=False")
    assert loaded.call("pretrain", workdir="w", dry_run=True)["dry_run"] is True
