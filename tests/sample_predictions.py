"""Synthetic predictions and references, equal on every machine, on which scorers are compared."""

import numpy as np

from fire_lm.tasks.metrics import InGroup

WORDS = (
    "the a an report Meeting committee 1995 42 budget, agreed? (yes) no. naïve 漢字 U.S. don't "
    "long-term policy policy policy of of in to it and was were he she they said said; \n\n"
).split(" ")


def texts(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def summaries(count: int = 50) -> tuple[list[list[str]], list[str]]:
    """Return one to three references for each of `count` predictions, and the predictions.

    A prediction is one of its references with words replaced, removed or moved, an empty text, or
    another text.
    """
    rng = np.random.default_rng(24)
    references, predictions = [], []
    for number in range(count):
        of_one = [texts(rng, int(rng.integers(1, 40))) for _ in range(rng.integers(1, 4))]
        words = np.array(str(rng.choice(of_one)).split(" "), dtype=object)
        changed = rng.random(len(words)) < 0.3
        words[changed] = rng.choice(WORDS, changed.sum())
        words = words[rng.random(len(words)) > 0.2]
        if number % 5 == 1:
            words = words[::-1]
        predictions.append(" ".join(words) if number % 11 else texts(rng, number))
        references.append(of_one)
    return references, predictions


def labels(names: tuple[str, ...], count: int = 200) -> tuple[list[str], list[str]]:
    """Return labels and predictions; about three quarters are right, and some are no label."""
    rng = np.random.default_rng(len(names))
    targets = rng.choice(
        names, count, p=np.arange(1, len(names) + 1) / np.arange(len(names) + 1).sum()
    )
    others = rng.choice([*names, "no label"], count)
    return list(map(str, targets)), list(
        map(str, np.where(rng.random(count) < 0.6, targets, others))
    )


def judged(count: int = 120) -> tuple[list[InGroup], list[str]]:
    """Return four answers to each question, and predictions."""
    targets, predictions = labels(("False", "True"), count)
    return [InGroup(f"q{n // 4}", label) for n, label in enumerate(targets)], predictions


def similarities() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    one = np.round(rng.uniform(0, 5, 100) * 5) / 5
    return one, np.round((one + rng.normal(0, 1, 100)) * 5) / 5
