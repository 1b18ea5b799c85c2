"""The name of a run in tables follows from its encoding, unless a configuration sets it."""

import re

import pytest

from fire_lm.errors import UserError
from fire_lm.experiment import POSITIONS, load_experiment

RUN = "configs/runs/quickstart.gin"


def label(*arguments: str) -> str:
    """Return ENCODING for files in configs/positions (or other paths) and bindings NAME=VALUE."""
    names = [argument for argument in arguments if "=" not in argument]
    files = [name if "/" in name else f"configs/positions/{name}.gin" for name in names]
    bindings = [argument for argument in arguments if "=" in argument]
    return str(load_experiment([RUN, *files], bindings).label)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["fire", "POSITION=@RoPE"], "rope"),
        (["fire", "POSITION=@FIRE"], "fire"),
        (["fire", "build_decoder.position=@RoPE"], "rope"),
        (["POSITION=@RoPE"], "rope"),
        (["rope_yarn", "POSITION=@NoPE"], "nope"),
        (["fire", "POSITION=@RoPE", "RoPE.base=500000.0"], "rope_base_500k"),
        # A schedule, with the settings that the file gave to its parts.
        (["fire", "POSITION=[@FIRE, @NoPE]"], "fire+nope"),
        (["fire_g", "POSITION=[@FIRE, @NoPE]"], "fire_g+nope"),
        (["fire", "POSITION=[%A, %B]", "A=@FIRE", "B=@NoPE"], "fire+nope"),
        (["fire", "POSITION=[@FIRE, @RoPE]"], "fire_and_rope"),
        (["fire", "POSITION=[@FIRE, @FIRE, @NoPE]"], "2xfire+nope"),
        # No file of configs/positions/ describes it, since their KERPLE shares its parameters.
        (["fire", "POSITION=@KERPLELog"], "KERPLELog"),
    ],
)
def test_another_position_takes_the_name_of_its_encoding(arguments, expected):
    assert label(*arguments) == expected


@pytest.mark.ci
def test_every_file_would_have_its_own_name_from_its_settings(tmp_path):
    """A wrong name would mean that some of its settings are not recognised.

    The names of schedules of `Layers` consist of their options, such as 3xrope-window-16+nope.
    """
    for path in sorted(POSITIONS.glob("*.gin")):
        if "Layers()" in path.read_text():
            continue
        unnamed = tmp_path / path.name
        unnamed.write_text(re.sub("^ENCODING.*$", "", path.read_text(), flags=re.MULTILINE))
        assert label(str(unnamed)) == path.stem


def test_a_name_that_was_set_on_purpose_stays(tmp_path):
    assert label("fire", "POSITION=@RoPE", "ENCODING=mine") == "mine"
    assert label("fire", "FIRE.hidden_layers=1", "ENCODING=fire_small") == "fire_small"
    mine = tmp_path / "mine.gin"
    mine.write_text(
        "include 'configs/positions/fire.gin'\nENCODING = 'mine'\nPOSITION = [@FIRE, @NoPE]\n"
    )
    assert label(str(mine)) == "mine"
    mine.write_text("include 'configs/positions/fire.gin'\nPOSITION = [@FIRE, @NoPE]\n")
    assert label(str(mine)) == "fire+nope"


def test_a_saved_configuration_keeps_its_name(tmp_path):
    """Rows of old runs were written under the name that was saved with the run."""
    saved = tmp_path / "config.gin"
    saved.write_text(
        load_experiment(
            [RUN, "configs/positions/fire.gin"], ["POSITION=@RoPE", "ENCODING=fire"]
        ).text()
    )
    assert load_experiment([str(saved)]).label == "fire"
    assert load_experiment([str(saved)], ["TRAIN_STEPS=7"]).label == "fire"


def test_the_fields_of_a_mixer_are_part_of_the_name():
    """Those that differ from their defaults, of every reference that a name contains."""
    linear, delta = (f"configs/mixers/{name}.gin" for name in ("infini", "infini_delta"))
    infini = "fire-mixer-InfiniAttention-segment"
    assert label("fire", linear) == f"{infini}-64"
    assert label("fire", linear, "InfiniAttention.segment=8") == f"{infini}-8"
    assert label("fire", delta) == f"{infini}-64-rule-delta"
    assert label("fire", delta, "ENCODING=mine") == "mine"
    sink = "POSITION=[@memory/Layers()]", "memory/Layers.encoding=@FIRE"
    sink = (*sink, "memory/Layers.mixer=@Attention()", "memory/Attention.sink=True")
    assert label(*sink) == "fire-mixer-Attention-sink-True"
    gated = "build_decoder.mixer=@Attention()", "Attention.sink=True"
    assert label("rope", *gated) == "rope-mixer-Attention-sink-True"


def test_encodings_that_are_combined_are_part_of_the_name():
    both = "POSITION=@Together", "Together.second=@FoX", "Together.first=@FIRE"
    assert label(*both) == "Together-first-fire-second-fox"
    assert label("fox_fire") == "fox_fire" == label(*both, "FoX.init_bias=5.0")
    other = "POSITION=@Together", "Together.first=@RoPE"
    assert label(*other, "Together.second=@KERPLELog") == "Together-first-rope-second-KERPLELog"
    inner = "Together.second=@in/Together", "in/Together.first=@ALiBi", "in/Together.second=@FoX"
    assert label(*other, *inner) == "Together-first-rope-second-Together-first-alibi-second-fox"
    assert label(*both, "POSITION=[@Together, @NoPE]") == "Together-first-fire-second-fox+nope"
    near = "POSITION=[@near/Layers()]", "near/Layers.encoding=@Together", "near/Layers.window=16"
    assert label(*both[1:], *near) == "Together-first-fire-second-fox-window-16"


def test_no_position_is_still_refused_with_the_list():
    with pytest.raises(UserError, match="no positional encoding chosen"):
        label()


@pytest.mark.parametrize(
    "bindings",
    [
        ["POSITION=%POSITION"],
        ["POSITION=%OTHER", "OTHER=%POSITION"],
        ["POSITION=[@FIRE, %POSITION]"],
        ["build_decoder.position=%OTHER", "OTHER=%OTHER"],
    ],
)
def test_a_position_that_refers_to_itself_is_told(bindings):
    """The search for the value behind the macro must terminate."""
    with pytest.raises(UserError, match=r"the macro \w+ refers to itself") as caught:
        label("fire", *bindings)
    assert len(str(caught.value).splitlines()) == 1
