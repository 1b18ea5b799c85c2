"""The text of a continuation: a prompt and its text are what all ids decode to together."""

from typing import Any

import numpy as np
import pytest
from sample_vocabulary import MODEL

from fire_lm.data import TextData
from fire_lm.data import tokens as vocabulary
from fire_lm.generation import Generated, continuations
from fire_lm.generation.continuations import Writer

PROMPT = "the cat sat on"
SUFFIX = " and and the"


def ids(data: TextData, text: str) -> list[int]:
    return vocabulary.encode(data, text).tolist()


@pytest.mark.parametrize("name", ["bytes", MODEL])
def test_a_prompt_and_its_text_are_the_decoding_of_all_ids(name):
    data = TextData("nowhere", vocabulary=name)
    writer = Writer(None, {}, data, new_tokens=1)
    prompt, tokens = [0, *ids(data, PROMPT)], ids(data, PROMPT + SUFFIX)
    tokens = tokens[len(prompt) - 1 :]
    assert vocabulary.decode(data, [*prompt, *tokens]) == PROMPT + SUFFIX
    assert writer.text_of(prompt, tokens) == (SUFFIX, False)
    for stop, text in ((" and", ""), (" the", " and and"), ("nd a", " a"), ("on", None)):
        writer = Writer(None, {}, data, new_tokens=1, stop=(stop,))
        expected = (SUFFIX, False) if text is None else (text, True)
        assert writer.text_of(prompt, tokens) == expected


def test_a_text_after_the_end_of_a_document_is_a_new_text():
    """The answer to an example of a task follows an end token, as its target does in training."""
    data = TextData("nowhere", vocabulary=MODEL)
    writer = Writer(None, {}, data, new_tokens=1)
    end = vocabulary.end_of_document(data)
    for before in ([0, *ids(data, PROMPT), end], [0]):
        assert writer.text_of(before, ids(data, "and and")) == ("and and", False)


def test_a_character_that_the_prompt_began_is_part_of_the_text():
    data = TextData("nowhere", vocabulary="bytes")
    first, second = ids(data, "é")
    writer = Writer(None, {}, data, new_tokens=1)
    assert writer.text_of([0, *ids(data, "caf"), first], [second]) == ("é", False)


def test_each_continuation_and_the_growing_text_know_their_prompt(monkeypatch):
    """Beams, samples and the text on a terminal all begin with the space after the prompt."""
    data = TextData("nowhere", vocabulary=MODEL)
    tokens = np.array([ids(data, "to"), ids(data, "is")], np.int32)

    def generate(*_: Any, on_tokens: Any, **__: Any) -> Generated:
        found = np.stack([tokens, tokens[::-1]])
        if on_tokens:
            on_tokens(found)
        score = np.zeros(found.shape[:2])
        length = np.full(found.shape[:2], found.shape[2])
        return Generated(found, length, np.zeros(found.shape), score, score > 0, 9)

    monkeypatch.setattr(continuations, "generate", generate)
    shown: list[str] = []
    end = vocabulary.end_of_document(data)
    prompts = [np.array([0, *ids(data, PROMPT), *last], np.int32) for last in ([], [end])]
    writer = Writer(None, {}, data, new_tokens=2)
    found = writer.continue_prompts(prompts, [0, 1], on_text=shown.append)
    assert [one.text for one in found[0]] == [" to", " is"]
    assert [one.text for one in found[1]] == ["is", "to"]
    assert shown == [" to"]
