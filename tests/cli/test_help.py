"""Suggestions for misspelt verbs, and the help texts."""

import pytest

from fire_lm.cli import main


def test_a_misspelt_verb_is_answered_with_the_nearest(capsys):
    assert main(["pretian"]) == 2
    assert "there is no verb 'pretian': did you mean pretrain?" in capsys.readouterr().err
    assert main(["bench", "modle"]) == 2
    assert "there is no subject 'modle': did you mean model?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "sweep", "report", "test-encoding"])
def test_help_has_a_description_and_an_example(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert "example" in shown and f"  fire-lm {verb} " in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "--gin.NAME VALUE" not in shown, "a binding needs the equals sign"


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["evaluate", "r", "--lengths=64-"], "argument --lengths: '64-' is not a range such as"),
        (["generate", "r", "--prompt=a", "--seed=-1"], "'-1' is not a whole number of 0 or more"),
        (["generate", "r", "--prompt=a", "--beams=0"], "'0' is not a whole number of 1 or more"),
        (["sweep", "r", "--gin.SEED", "5"], "--gin.SEED: a binding must be of the form"),
    ],
)
def test_numbers_that_cannot_be_are_named(arguments, told, capsys):
    assert main(arguments) == 2
    assert told in capsys.readouterr().err
