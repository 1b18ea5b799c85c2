"""Statistics of the documents in a data set, and of the rows into which they are arranged."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.on_the_fly import tasks
from fire_lm.data.quiet_tensorflow import tf
from fire_lm.data.rows import ROWS
from fire_lm.data.spec import Construction

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextData


@dataclasses.dataclass(frozen=True)
class Contents:
    """Statistics of the documents that were read from a split.

    Attributes:
      tokens: The number of tokens in each document, including the end-of-document token, int64
        [documents].
      text_bytes: The size of the documents' text.
      unknown: The number of tokens that represent text unknown to the vocabulary.
      skipped: The number of documents that are empty, have no tokens, are huge or are not UTF-8.
      digests: The digests of the texts, which are used to find duplicates.
      whole: Whether the complete split was read.
    """

    tokens: np.ndarray
    text_bytes: int
    unknown: int
    skipped: int
    digests: frozenset[bytes]
    whole: bool

    @property
    def duplicates(self) -> int:
        """The number of documents whose text is identical to that of an earlier document."""
        return len(self.tokens) - len(self.digests)

    @property
    def unknown_share(self) -> float:
        return self.unknown / max(1, int(self.tokens.sum()))


def survey(
    data: TextData,
    split: str,
    most: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Contents:
    """Return statistics of the first `most` documents of a split, or a few more.

    `progress` receives the number of documents read so far and the total.

    Raises:
      UserError: The data set, the split or the vocabulary does not exist.
      RunFailed: A file is damaged.
    """
    vocabulary = vocabularies.load(data.vocabulary)
    unknown_id = vocabularies.unknown_id(data.vocabulary)
    # The number of documents is unspecified, so that the function is traced only once.
    any_number = tf.TensorSpec([None], tf.string)
    tokenize = tf.function(vocabularies.tokenizer(vocabulary), input_signature=[any_number])
    total = min(most, tasks.check(data, length=2, split=split) or most)
    tokens = [np.zeros(0, np.int64)]
    digests: set[bytes] = set()
    size = unknown = skipped = documents = 0
    whole = True
    for texts, left_out in tasks.document_groups(data, split):
        if documents >= most:
            whole = False
            break
        documents += len(texts) + left_out
        ragged = tokenize(tf.constant(texts, tf.string))
        lengths = ragged.row_lengths().numpy()
        # SentencePiece may return no tokens for a document of white space. Training also skips such
        # documents.
        texts = [text for text, length in zip(texts, lengths, strict=True) if length]
        left_out += int(np.sum(lengths == 0))
        tokens.append(lengths[lengths > 0] + 1)
        unknown += int(np.sum(ragged.flat_values.numpy() == unknown_id))
        skipped += left_out
        digests.update(hashlib.sha256(text).digest()[:16] for text in texts)
        size += sum(map(len, texts))
        progress(min(documents, total), total)
    return Contents(np.concatenate(tokens), size, unknown, skipped, frozenset(digests), whole)


def unknown_share(data: TextData, split: str) -> float:
    """Return the share of unknown tokens in the first 64 documents of a split.

    For a mixture, this is the largest such share among its data sets.
    """
    if data.vocabulary == "bytes":
        return 0.0
    return max(survey(part, split, 64).unknown_share for part in data.parts)


@dataclasses.dataclass(frozen=True)
class Arranged:
    """The numbers of sequences, tokens and documents in rows that are split into one length.

    `places` is the number of positions in these sequences, including padding. If the length does
    not divide a row, the last sequence of the row is shorter.
    """

    construction: Construction
    length: int
    sequences: int
    places: int
    tokens: int
    documents: int

    @property
    def padding(self) -> float:
        """The share of the sequences' positions that contain padding."""
        return 1 - self.tokens / self.places if self.places else 0.0


def row_contents(
    construction: Construction, document_tokens: np.ndarray, lengths: Sequence[int]
) -> list[Arranged]:
    """Return statistics of documents of `document_tokens` tokens each, for each length.

    The documents are arranged in rows of the longest length, which are split for shorter lengths.
    """
    longest = max(lengths)
    ends = np.cumsum(np.asarray(document_tokens, np.int64))
    tokens = int(ends[-1]) if len(ends) else 0
    rows = ROWS[construction](longest, tokens, [ends] if tokens else [])
    starts, stops = rows.spans(np.arange(rows.count))
    fills = stops - starts
    # A document is part of a row if the first row that ends after the document's start begins
    # before the document's end.
    row = np.searchsorted(stops, ends - document_tokens, "right")
    documents = int((np.append(starts, tokens)[row] < ends).sum())
    arranged = []
    for n in sorted(lengths):
        sequences = -(-fills // n)
        places = int(np.minimum(sequences * n, longest).sum())
        counts = (int(sequences.sum()), places, int(fills.sum()), documents)
        arranged.append(Arranged(construction, n, *counts))
    return arranged
