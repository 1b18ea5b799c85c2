"""A small data set with two bad documents, and what a reader makes of it."""

import pathlib

import numpy as np
import pytest

import fire_lm.data
from fire_lm.data import TextData

EOS = 1
BAD = {"empty": b"", "blank": b" \n\t ", "broken": b"caf\xe9 \xff", "surrogate": b"\xed\xa0\x80 x"}


def good_documents(split: str, count: int) -> dict[str, bytes]:
    """Return distinct documents of 3 to 60 characters, some of which take several bytes."""
    random = np.random.default_rng(len(split))
    letters = list("abc  xyz\n\té漢😀.")
    return {
        f"{split}/{i}": f"{i}:{''.join(random.choice(letters, random.integers(1, 55)))}!".encode()
        for i in range(count)
    }


GOOD = {"train": good_documents("train", 60), "validation": good_documents("validation", 24)}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    from fire_lm.data.corpora import c4_writer

    folder = tmp_path_factory.mktemp("text")
    c4_writer.write(folder, {split: texts | BAD for split, texts in GOOD.items()})
    return str(folder)


@pytest.fixture(scope="module")
def sentencepiece_model() -> str:
    import seqio

    folder = pathlib.Path(seqio.__file__).parent / "test_data" / "sentencepiece"
    return str(folder / "sentencepiece.model")


def batches(data: TextData, count: int, **kwargs) -> list[dict[str, np.ndarray]]:
    arguments = dict(length=16, batch_size=5, seed=3) | kwargs
    return taken(fire_lm.data.train_iterator(data, **arguments), count)


def taken(iterator, count: int) -> list[dict[str, np.ndarray]]:
    """Return the next batches, each with the number of documents skipped before it."""
    return [{**next(iterator), "skipped": np.array(iterator.skipped)} for _ in range(count)]


def documents_of(tokens: np.ndarray) -> list[bytes]:
    """Return the documents in a stream of byte tokens, without padding."""
    tokens = tokens[tokens != 0]
    ends = np.flatnonzero(tokens == EOS)
    return [
        (part[part != EOS] - 3).astype(np.uint8).tobytes() for part in np.split(tokens, ends + 1)
    ]
