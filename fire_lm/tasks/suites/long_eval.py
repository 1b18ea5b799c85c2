"""LongEval (Li et al. 2023): retrieval of a line, or of the first topic, from a long text.

The exercises have the benchmark's form but our own wording, so scores are not comparable with
scores on the benchmark's own test cases. Exercises are generated at random for a given size.
Prompts end where the answer begins, so that models without instruction tuning can continue them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fire_lm.tasks.metrics import Accuracy, Mentioned
from fire_lm.tasks.suites.postprocess import last_number, references
from fire_lm.tasks.suites.rows import Row
from fire_lm.tasks.suites.text_task import Generated, TextTask

# The words and sentences from which exercises are built. An aspect is a question that fits any
# topic, and its answer.
_WORDS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
ADJECTIVES, NOUNS = (_WORDS[kind].split() for kind in ("adjectives", "nouns"))
TOPICS, ASPECTS = _WORDS["topics"], _WORDS["aspects"]

LARGEST_VALUE = 50_000
_ROUNDS = 4  # the number of questions about each topic


def lines(rng: np.random.Generator, size: int, key: str) -> Row:
    """Return a row that lists `size` named lines with numbers and asks for one of the numbers."""
    numbers = rng.integers(1, LARGEST_VALUE + 1, size)
    pairs = rng.choice(len(ADJECTIVES) * len(NOUNS), size, replace=False)
    names = [f"{ADJECTIVES[pair // len(NOUNS)]}-{NOUNS[pair % len(NOUNS)]}" for pair in pairs]
    line = int(rng.integers(size))
    record = "".join(
        f"line {name}: REGISTER_CONTENT is <{value}>\n"
        for name, value in zip(names, numbers, strict=True)
    )
    inputs = (
        "This is a record of lines. Each of them starts with its name and ends with a number, its "
        f"REGISTER_CONTENT. You will be asked for one of the numbers.\n\n{record}\n"
        f"Which number is the REGISTER_CONTENT of line {names[line]}?\n"
        f"Line {names[line]}: REGISTER_CONTENT is"
    )
    answer = str(numbers[line])
    return Row(key, key, inputs, answer, (answer,))


def topics(rng: np.random.Generator, size: int, key: str) -> Row:
    """Return a row with a conversation about `size` topics, which asks for the first topic."""
    chosen = [TOPICS[place] for place in rng.choice(len(TOPICS), size, replace=False)]
    inputs = (
        "This is a conversation about several topics, one after the other.\n\n"
        + "\n".join(_talk(rng, topic) for topic in chosen)
        + "\nUSER: Which topic did we talk about first? Give its name alone.\n"
        "ASSISTANT: The first topic is"
    )
    return Row(key, key, inputs, chosen[0], (chosen[0],))


def _talk(rng: np.random.Generator, topic: str) -> str:
    said = [
        f"USER: I would like to talk about the topic of {topic}.",
        f"ASSISTANT: With pleasure. What would you like to know about {topic}?",
    ]
    for place in rng.choice(len(ASPECTS), _ROUNDS, replace=False):
        question, answer = ASPECTS[place]
        said += [f"USER: {question}", f"ASSISTANT: {answer}"]
    return "".join(f"{turn}\n" for turn in said)


LINES = TextTask(
    name="long_eval_lines",
    title="lines",
    origin=Generated(lines, len(ADJECTIVES) * len(NOUNS), (200, 300, 400, 500, 600, 680)),
    metrics=(Accuracy(),),
    postprocess=last_number,
    target_length=16,
)
FIRST_TOPIC = TextTask(
    name="long_eval_topics",
    title="topics",
    origin=Generated(topics, len(TOPICS), (5, 10, 15, 20, 25)),
    metrics=(Mentioned(),),
    postprocess=references,
    target_length=16,
)

TASKS = (LINES, FIRST_TOPIC)
