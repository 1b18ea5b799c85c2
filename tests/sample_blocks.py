"""A small data set with difficult texts, its blocks, and the constructions in plain Python."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest

from fire_lm.data import Blocks, TextData, scoring_text, train_iterator

SPACES = 70_000  # spaces that may be one SentencePiece token, of more bytes than 16 bits count
TRICKY = {
    "plain": b"Some words, and more words.",
    "empty": b"",
    "blank": b" \n\t ",
    "not UTF-8": b"caf\xe9",
    "several bytes": "漢字 😀 naïve".encode(),
    "spaces": b"before" + b" " * SPACES + b"after",
    "NUL": b"a\x00b",
    "special pieces": b"</s> <pad> <s> \xe2\x96\x81",
    **{f"number {n}": f"document {n} ".encode() * (n + 1) for n in range(40)},
}


@functools.cache
def written(session: Path) -> tuple[Path, Path]:
    """Write the text and its blocks, with one part per split, once in a session of tests."""
    from fire_lm.data.blocks.writer import write_blocks
    from fire_lm.data.corpora import c4_writer

    text, whole = session / "tricky" / "text", session / "tricky" / "blocks"
    to_score = {f"text {n}": b"Words to score. " * n for n in range(5, 9)}  # four files per split
    c4_writer.write(text, {"train": TRICKY, "validation": to_score})
    write_blocks(TextData(str(text)), str(whole))
    return text, whole


# Tests copy both and never change them.
@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    return str(written(tmp_path_factory.getbasetemp())[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return written(tmp_path_factory.getbasetemp())[1]


@pytest.fixture
def blocks(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "blocks"))


def all_rows(output: Path) -> np.ndarray:
    """Open and read everything that training and scoring read; return a training batch."""
    data = Blocks(str(output), construction="cut")
    for split in ("train", "validation"):
        scoring_text(data, length=64, num_sequences=10**6, split=split)
    return next(train_iterator(data, length=64, batch_size=8, seed=0))["targets"]


def expected_rows(construction: str, documents: list[list[int]], length: int) -> list[list[list]]:
    """Return rows of segments of tokens, as TextData.construction documents them."""
    if construction == "concat":
        stream = [token for document in documents for token in document]
        full = range(0, len(stream) // length * length, length)
        return [[stream[i : i + length]] for i in full]
    if construction == "long_documents":
        return [[document[:length]] for document in documents if len(document) >= length]
    parts = [d[i : i + length] for d in documents for i in range(0, len(d), length)]
    if construction == "cut":
        return [[part] for part in parts]
    rows: list[list[list]] = []
    for part in parts:
        if not rows or sum(map(len, rows[-1])) + len(part) > length:
            rows.append([])
        rows[-1].append(part)
    return rows
