"""Values that describe the text to read and what reading returns. They read nothing themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal, Protocol, get_args

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.layouts import Layout

# Longer documents are skipped: SentencePiece needs up to 230 bytes of memory per byte (measured).
LONGEST_DOCUMENT = 2**24  # bytes
# The file that marks a data directory as holding the embedded text (`corpora.embedded`).
EMBEDDED_MANIFEST = "fire_lm_corpus.json"
# The number of rows read per scored row. The scored rows are spread evenly over them, so that a few
# rows of a small set do not all come from one or two documents.
SCORING_SPREAD = 8

Construction = Literal["concat", "cut", "packed", "long_documents"]
CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)


@dataclasses.dataclass(frozen=True)
class TextData:
    """Where the text is and how documents become rows; gin fills the fields.

    Attributes:
        data_dir: The TFDS data directory, local or gs://.
        tfds_name: A TFDS name with config and version; any data set with a `text` feature.
        vocabulary: 'bytes' (seqio.ByteVocabulary: padding 0, end of document 1, unknown 2, byte b
            is id b + 3), the path of a SentencePiece model, local or gs://, or hf:FOLDER, the
            `tokenizer.json` of a Hugging Face model (to write blocks and to score).
        construction: How documents, each with its end-of-document token, become rows of n tokens.
            'concat' joins them and splits the stream into full rows; 'cut' splits each document
            into its own rows and pads the last one; 'packed' places these parts side by side in
            rows (next-fit), each a segment with its own positions and attention; 'long_documents'
            takes the first n tokens of documents that have at least n.
        shuffle_buffer: The number of rows that are shuffled together, per shard. A larger buffer
            delays the first batch, but does not enlarge the saved position.
        mixture: Instead of `tfds_name`, data sets of `data_dir` and the rates at which their rows
            are drawn: (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1)) gives arXiv a quarter of the rows.
            A mixture is for training; a sweep scores each data set separately.
    """

    data_dir: str
    tfds_name: str = "c4/en:3.1.0"
    vocabulary: str = "bytes"
    construction: Construction = "concat"
    shuffle_buffer: int = 1000
    mixture: tuple[tuple[str, float], ...] = ()
    unshifted: ClassVar[bool] = False  # the inputs are the targets shifted by one

    def __post_init__(self) -> None:
        """Refuse settings that are invalid on every machine, wherever they are first used."""
        if self.shuffle_buffer < 1:
            raise UserError(
                f"TextData.shuffle_buffer must be at least 1, not {self.shuffle_buffer}."
            )
        for name, rate in self.mixture:
            if not 0 < rate < math.inf:
                raise UserError(
                    f"TextData.mixture: the rate of {name} must be positive and finite, not {rate}."
                )
            if [other for other, _ in self.mixture].count(name) > 1:
                raise UserError(f"TextData.mixture names {name} twice: give it one rate.")

    @property
    def packed(self) -> bool:
        """Whether a row holds several documents, which `segment_ids` distinguishes."""
        return self.construction == "packed"

    @property
    def parts(self) -> tuple[TextData, ...]:
        """The data sets of the mixture, or this data set alone."""
        if not self.mixture:
            return (self,)
        return tuple(
            dataclasses.replace(self, tfds_name=name, mixture=()) for name, _ in self.mixture
        )

    @property
    def title(self) -> str:
        """The name in messages: the TFDS name, or the names of the mixture with their rates."""
        return " + ".join(f"{rate:g} {name}" for name, rate in self.mixture) or self.tfds_name

    @property
    def where(self) -> str:
        """The text and its location, for messages."""
        return f"{self.title} in {self.data_dir}"


@dataclasses.dataclass(frozen=True)
class SeqioTask:
    """A Task or Mixture that is registered with seqio; gin fills the fields.

    Its own preprocessors produce the tokens, including end-of-document tokens; fire_lm arranges
    them in rows.

    Attributes:
        name: The name of the Task or Mixture; `--import` names the module that registers it.
        vocabulary: The vocabulary of the task's feature, named as in `TextData`: 'bytes' or the
            path of a SentencePiece model, which generation and export read.
        feature: The output feature to model.
        construction: How examples become rows, see `TextData.construction`; each example counts as
            a document.
        shuffle_buffer: See `TextData.shuffle_buffer`; seqio itself shuffles only files.
        use_cached: Whether to read the output of `seqio_cache_tasks`.
        cache_dirs: Directories with that output, besides those that seqio already knows.
    """

    name: str
    vocabulary: str = "bytes"
    feature: str = "targets"
    construction: Construction = "concat"
    shuffle_buffer: int = 1000
    use_cached: bool = False
    cache_dirs: tuple[str, ...] = ()
    mixture: ClassVar[tuple[tuple[str, float], ...]] = ()  # seqio applies the rates
    unshifted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.shuffle_buffer < 1:
            raise UserError(
                f"SeqioTask.shuffle_buffer must be at least 1, not {self.shuffle_buffer}."
            )
        if self.cache_dirs and not self.use_cached:
            raise UserError("SeqioTask.cache_dirs has no effect without SeqioTask.use_cached=True.")

    @property
    def packed(self) -> bool:
        """Whether a row holds several documents; see `TextData.packed`."""
        return self.construction == "packed"

    @property
    def parts(self) -> tuple[SeqioTask, ...]:
        """The parts that are scored separately: a mixture is scored as one text, at its rates."""
        return (self,)

    @property
    def title(self) -> str:
        """The name of the text in messages."""
        return self.name

    @property
    def where(self) -> str:
        """The text and its location, for messages."""
        return f"the registered {self.name}"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Where the blocks are and how documents become rows; gin fills the fields.

    Attributes:
        path: The --output of `fire-lm corpus blocks`: local, gs:// or s3://.
        vocabulary: The vocabulary with which the blocks must have been made: 'bytes' or the path of
            the SentencePiece model. An empty string accepts any blocks, for machines that have no
            copy of the model.
        construction: See `TextData.construction`.
    """

    path: str
    vocabulary: str = ""
    construction: Construction = "concat"
    unshifted: ClassVar[bool] = False

    @property
    def packed(self) -> bool:
        """Whether a row holds several documents; see `TextData.packed`."""
        return self.construction == "packed"

    @property
    def title(self) -> str:
        """The name of the text in messages."""
        return self.path

    @property
    def parts(self) -> tuple[Blocks, ...]:
        """The parts that are scored separately: blocks hold one data set."""
        return (self,)


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """Exercises of a synthetic task; gin fills the fields.

    Attributes:
        task: A rule that makes exercises (`fire_lm.tasks.synthetic`).
        max_length: The maximum length of training exercises; the length of each batch is drawn
            uniformly from the task's shortest length to this one.
        layout: Where the answer is: 'slots' puts it in slots after the input, filled in one pass;
            'autoregressive' appends it as text, generated symbol by symbol.
    """

    task: Task
    max_length: int = 40
    layout: Layout = "slots"
    packed: ClassVar[bool] = False
    # Batches have `inputs`, which need not be the targets shifted by one, and `tokens`.
    unshifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.task.check_length(self.max_length)

    @property
    def title(self) -> str:
        """The name of the task in messages."""
        return type(self.task).__name__


ReadBySeqio = TextData | SeqioTask
Data = ReadBySeqio | Blocks  # text, which can also be scored
TrainingData = Data | Synthetic


class NoText(UserError):
    """A split without a row of the requested length."""


def text_weights(targets: np.ndarray) -> np.ndarray:
    """Return the weights of targets, int8, in the shape of `targets`: 1, or 0 for padding."""
    return (targets != 0).astype(np.int8)


def share_unknown(targets: np.ndarray, unknown_id: int | None) -> float:
    """Return the share of unknown tokens in `targets` (int, any shape; 0 is padding)."""
    if unknown_id is None:
        return 0.0
    return float(np.sum(targets == unknown_id)) / max(1, int(np.count_nonzero(targets)))


class TrainIterator(Protocol):
    """Endless training batches of one shard; see `fire_lm.data.train_iterator`.

    Attributes:
        shared_state: Whether the position is the same on all shards.
        skipped: The number of documents skipped since the previous batch as empty, undecodable or
            huge.
        on_rows: Called with the rows read and the rows to read before the first batch.
    """

    shared_state: bool
    skipped: int
    on_rows: Callable[[int, int], None]

    @property
    def description(self) -> str: ...
    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...
    def __next__(self) -> dict[str, np.ndarray]: ...
    def get_state(self) -> bytes: ...
    def set_state(self, state: bytes) -> None: ...


@dataclasses.dataclass(frozen=True)
class ScoringText:
    """Fixed text to score.

    Attributes:
        targets: The tokens, int32 [n, length]; 0 is padding, which is never scored.
        byte_counts: The number of bytes of the original text that each target stands for, int32
            [n, length]; 0 for the end of a document and for padding.
        skipped: The number of documents skipped while reading as empty, undecodable or huge.
        unknown: The share of the scored tokens that are unknown to the vocabulary.
        segment_ids: The segments of packed rows, int32 [n, length], as in training; None if rows
            are not packed.
    """

    targets: np.ndarray
    byte_counts: np.ndarray
    skipped: int
    unknown: float = 0.0
    segment_ids: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        """The weight of each target, int8 [n, length]."""
        return text_weights(self.targets)
