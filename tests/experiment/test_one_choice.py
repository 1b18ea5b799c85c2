"""Two files that choose the encoding, or the size of the model, of one experiment."""

import pytest

from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment

RUN = "configs/runs/quickstart.gin"
ROPE, FIRE, YARN = (f"configs/positions/{name}.gin" for name in ("rope", "fire", "rope_yarn"))
SMALL, LARGE = "configs/models/3m.gin", "configs/models/125m.gin"


@pytest.mark.parametrize(
    "files, macro",
    [
        ((RUN, ROPE, FIRE), "POSITION"),
        ((ROPE, FIRE, RUN), "POSITION"),
        ((RUN, YARN, ROPE), "POSITION"),  # which would otherwise be YaRN under the name rope
        ((RUN, ROPE, SMALL, LARGE), "MODEL_SIZE"),
    ],
)
def test_two_choices_are_refused_with_both_names(files, macro):
    with pytest.raises(UserError) as error:
        load_experiment(files)
    chosen = [name for name in files if name != RUN and (macro != "MODEL_SIZE" or "models" in name)]
    said = str(error.value)
    assert f"{chosen[0]} and {chosen[1]} both set {macro}" in said and len(said.splitlines()) == 2


def test_a_choice_before_the_experiment_that_makes_it_is_refused(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(f"include '{RUN}'\ninclude '{FIRE}'\npretrain.log_every = 3\n")
    with pytest.raises(UserError, match=f"{ROPE} after {own} if it is to apply"):
        load_experiment([ROPE, str(own)])
    assert load_experiment([str(own), ROPE]).label == "rope"


def test_choices_that_do_not_conflict(tmp_path):
    """A file that overrides its include, a binding, and the same file twice."""
    own = tmp_path / "own.gin"
    own.write_text(f"include '{RUN}'\ninclude '{FIRE}'\nPOSITION = @NoPE\nENCODING = 'mine'\n")
    assert load_experiment([str(own)]).label == "mine"
    assert load_experiment([RUN, FIRE], ["POSITION=@RoPE"]).label == "rope"
    assert load_experiment([RUN, ROPE, ROPE]).label == "rope"
    assert load_experiment([RUN, ROPE, LARGE]).macro("MODEL_SIZE") != load_experiment(
        [RUN, ROPE]
    ).macro("MODEL_SIZE"), "the size of an experiment may be replaced"
