"""Classes that describe sources of data: text, tasks and exercises."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal, Protocol, get_args

from fire_lm.data.truncation import TRUNCATIONS, Truncation
from fire_lm.errors import UserError
from fire_lm.tasks.synthetic import Task
from fire_lm.tasks.synthetic.layouts import Layout

# Longer documents are skipped, because SentencePiece needs up to 230 bytes of memory for each byte
# of text (measured).
LONGEST_DOCUMENT = 2**24  # bytes
# The file that marks a data directory as containing the embedded text (`corpora.embedded`).
EMBEDDED_MANIFEST = "fire_lm_corpus.json"
# The number of rows read per scored row. The scored rows are spread evenly over the rows read, so
# that a small number of scored rows does not come from only one or two documents.
SCORING_SPREAD = 8

Construction = Literal["concat", "cut", "packed", "long_documents"]
CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)


@dataclasses.dataclass(frozen=True)
class TextData:
    """The location of a TFDS data set and the way its documents become rows, configured by gin.

    Attributes:
        data_dir: The TFDS data directory, which may be local or on gs://.
        tfds_name: The TFDS name, with config and version, of a data set with a `text` feature.
        vocabulary: 'bytes' for seqio.ByteVocabulary (padding is 0, end of document is 1, unknown is
            2, and byte b has id b + 3), the local or gs:// path of a SentencePiece model, or
            hf:FOLDER for the `tokenizer.json` of a Hugging Face model. The last form can be used to
            write blocks and to score, but not for training on the fly.
        construction: How documents, each with its end-of-document token, become rows of n tokens.
            'concat' joins the documents and splits the stream into full rows. 'cut' splits each
            document into its own rows and pads the last row. 'packed' places these parts side by
            side in rows (next-fit); each part is a segment with its own positions and attention.
            'long_documents' takes the first n tokens of each document that has at least n tokens.
        shuffle_buffer: The number of rows that each shard shuffles together. A larger buffer delays
            the first batch but does not enlarge the saved position.
        mixture: The data sets in `data_dir` to read instead of `tfds_name`, and the rates at which
            their rows are drawn: (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1)) takes a quarter of the
            rows from arXiv. Only training reads a mixture as a whole; a sweep scores each data set
            separately.
    """

    data_dir: str
    tfds_name: str = "c4/en:3.1.0"
    vocabulary: str = "bytes"
    construction: Construction = "concat"
    shuffle_buffer: int = 1000
    mixture: tuple[tuple[str, float], ...] = ()
    unshifted: ClassVar[bool] = False  # the inputs are the targets shifted by one
    # The parameters that are paths, and their kinds, by which a run finds them again
    # (`fire_lm.runs.inputs`).
    paths: ClassVar[dict[str, str]] = {"data_dir": "data", "vocabulary": "vocabulary"}

    def __post_init__(self) -> None:
        """Raise UserError if the shuffle buffer or the mixture is invalid."""
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
                raise UserError(f"TextData.mixture contains {name} twice: list it once.")

    @property
    def packed(self) -> bool:
        """Whether a row may contain several documents, which `segment_ids` distinguishes."""
        return self.construction == "packed"

    @property
    def parts(self) -> tuple[TextData, ...]:
        """The data sets of the mixture, or only this data set if there is no mixture."""
        if not self.mixture:
            return (self,)
        return tuple(
            dataclasses.replace(self, tfds_name=name, mixture=()) for name, _ in self.mixture
        )

    @property
    def title(self) -> str:
        """The name for use in messages: the TFDS name, or the mixture's names and rates."""
        return " + ".join(f"{rate:g} {name}" for name, rate in self.mixture) or self.tfds_name

    @property
    def where(self) -> str:
        """A description of the text and its location for use in messages."""
        return f"{self.title} in {self.data_dir}"


@dataclasses.dataclass(frozen=True)
class SeqioTask:
    """A Task or Mixture that is registered with seqio, configured by gin.

    The task's own preprocessors produce the tokens, including any end-of-document tokens. fire_lm
    arranges these tokens in rows.

    Attributes:
        name: The name of the Task or Mixture; `--import` specifies the module that registers it.
        vocabulary: The vocabulary of the task's feature, which generation and export use: 'bytes'
            or the path of a SentencePiece model.
        feature: The output feature to model.
        construction: How examples become rows, with each example counted as a document; see
            `TextData.construction`.
        shuffle_buffer: See `TextData.shuffle_buffer`; seqio itself shuffles only files and, in a
            Mixture, the examples of each task.
        use_cached: Whether to read the output of `seqio_cache_tasks`.
        cache_dirs: Directories that contain this output, in addition to seqio's global cache
            directories.
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
    paths: ClassVar[dict[str, str]] = {"vocabulary": "vocabulary", "cache_dirs": "data"}

    def __post_init__(self) -> None:
        check_reading(self)

    @property
    def packed(self) -> bool:
        """Whether a row may contain several documents; see `TextData.packed`."""
        return self.construction == "packed"

    @property
    def parts(self) -> tuple[SeqioTask, ...]:
        """The texts that are scored separately; a Mixture counts as one text, mixed by seqio."""
        return (self,)

    @property
    def title(self) -> str:
        """The name of the text for use in messages."""
        return self.name

    @property
    def where(self) -> str:
        """A description of the text for use in messages."""
        return f"the registered {self.name}"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The location of blocks and the way their documents become rows, configured by gin.

    Attributes:
        path: The directory that `fire-lm corpus blocks --output` wrote, which may be local or on
            gs:// or s3://.
        vocabulary: The vocabulary with which the blocks must have been made, specified as in
            `TextData`. An empty string accepts any blocks and is meant for machines without a copy
            of the vocabulary file.
        construction: See `TextData.construction`.
    """

    path: str
    vocabulary: str = ""
    construction: Construction = "concat"
    unshifted: ClassVar[bool] = False
    paths: ClassVar[dict[str, str]] = {"path": "data", "vocabulary": "vocabulary"}

    @property
    def packed(self) -> bool:
        """Whether a row may contain several documents; see `TextData.packed`."""
        return self.construction == "packed"

    @property
    def title(self) -> str:
        """The name of the text for use in messages."""
        return self.path

    @property
    def parts(self) -> tuple[Blocks, ...]:
        """The texts that are scored separately; blocks contain a single data set."""
        return (self,)


@dataclasses.dataclass(frozen=True)
class TextToText:
    """The examples of a seqio Task or Mixture, each an input and its target, configured by gin.

    A row contains one example: the input, the end-of-document token, the target, the same token
    again, and padding. Only the target and its end token count in the loss, unless
    `train_on_inputs` is set.

    Attributes:
        name: The name of the Task or Mixture, which has the features `inputs` and `targets`.
            `--import` specifies the module that registers a user's task.
        vocabulary: The vocabulary of both features: 'bytes' or the path of a SentencePiece model.
        target_length: The maximum number of tokens in a target, including its end token. The rest
            of a row is available to the input. Examples whose target is longer or empty are
            skipped.
        data_dir: The folder in which `fire-lm corpus tasks` wrote the data sets, for the tasks
            fire_lm:NAME; ignored for other tasks.
        truncation: How an input that does not fit is truncated: 'head' keeps its beginning, 'tail'
            its end, and 'middle' both, with half of the tokens each.
        train_on_inputs: Whether the tokens of the input and its end token count in the loss too.
        shuffle_buffer: The number of rows that each shard shuffles together.
        use_cached: Whether to read the files that `seqio_cache_tasks` has written.
        cache_dirs: Directories that contain these files, in addition to seqio's global cache
            directories.
    """

    name: str
    target_length: int
    vocabulary: str = "bytes"
    data_dir: str = ""
    truncation: Truncation = "head"
    train_on_inputs: bool = False
    shuffle_buffer: int = 1000
    use_cached: bool = False
    cache_dirs: tuple[str, ...] = ()
    mixture: ClassVar[tuple[tuple[str, float], ...]] = ()  # seqio applies the rates of a Mixture
    packed: ClassVar[bool] = False
    unshifted: ClassVar[bool] = False
    paths: ClassVar[dict[str, str]] = {
        "data_dir": "data",
        "vocabulary": "vocabulary",
        "cache_dirs": "data",
    }

    def __post_init__(self) -> None:
        if self.target_length < 2:
            raise UserError(
                f"TextToText.target_length is {self.target_length}: it must be 2 or more, for one "
                "token and the end token"
            )
        if self.truncation not in TRUNCATIONS:
            raise UserError(
                f"TextToText.truncation is {self.truncation!r}: it must be one of "
                f"{', '.join(TRUNCATIONS)}"
            )
        check_reading(self)

    @property
    def is_ours(self) -> bool:
        """Whether this is a task whose data `fire-lm corpus tasks` writes to `data_dir`."""
        return bool(self.data_dir) and self.name.startswith("fire_lm:")

    @property
    def parts(self) -> tuple[TextToText, ...]:
        """The tasks that are read separately; a Mixture counts as one task, mixed by seqio."""
        return (self,)

    @property
    def construction(self) -> str:
        """A description of how examples become rows."""
        counted = ", inputs in the loss" * self.train_on_inputs
        return (
            f"one example per row, targets of up to {self.target_length} tokens, input truncation "
            f"{self.truncation!r}{counted}"
        )

    @property
    def title(self) -> str:
        """The name of the task for use in messages."""
        return self.name

    @property
    def where(self) -> str:
        """A description of the task for use in messages."""
        return f"the registered {self.name}"

    def input_length(self, length: int) -> int:
        """Return the maximum number of input tokens, without the end token, in a row of `length`.

        Raises:
            UserError: The row leaves no room for an input.
        """
        room = length - self.target_length - 1
        if room < 1:
            raise UserError(
                f"a row of {length} tokens leaves no room for the input of {self.name} in addition "
                f"to a target of {self.target_length} tokens (TextToText.target_length): rows need "
                f"{self.target_length + 2} tokens or more"
            )
        return room


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """The exercises of a synthetic task, configured by gin.

    Attributes:
        task: A rule that generates exercises (`fire_lm.tasks.synthetic`).
        max_length: The maximum length of training exercises. The length of each batch is drawn
            uniformly between the task's shortest length and this maximum.
        layout: How the answer is represented. 'slots' reserves slots after the input, which the
            model fills in one pass; 'autoregressive' appends the answer as text, which the model
            generates symbol by symbol.
    """

    task: Task
    max_length: int = 40
    layout: Layout = "slots"
    packed: ClassVar[bool] = False
    # Batches contain `inputs`, which need not be the targets shifted by one, and `tokens`.
    unshifted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.task.check_length(self.max_length)

    @property
    def title(self) -> str:
        """The name of the task for use in messages."""
        return type(self.task).__name__


@dataclasses.dataclass(frozen=True)
class Pairs(TextToText):
    """Examples in a file of JSON lines, each an object with the texts `inputs` and `targets`.

    The hash of its input determines whether an example belongs to the split 'train' or
    'validation', so the order of the lines has no effect, and examples with the same input are in
    the same split.

    Attributes:
        file: The path of the file, which may be local or on gs://.
        sha256: The SHA-256 that the file must have; an empty string accepts any file.
        validation_share: The expected share of the examples in the split 'validation'.
        name: The name of the task in tables; by default, the name of the file without its suffix.
    """

    name: str = dataclasses.field(default="", kw_only=True)
    file: str = dataclasses.field(kw_only=True)
    sha256: str = dataclasses.field(default="", kw_only=True)
    validation_share: float = dataclasses.field(default=0.05, kw_only=True)
    # `_folder` of `fire_lm.runs.inputs` resolves the path of a file, too.
    paths: ClassVar[dict[str, str]] = TextToText.paths | {"file": "data"}

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.file.rpartition("/")[2].partition(".")[0])
        if not 0 < self.validation_share < 1:
            raise UserError(
                f"Pairs.validation_share is {self.validation_share:g}: it must be between 0 and 1"
            )
        super().__post_init__()

    @property
    def where(self) -> str:
        """A description of the examples for use in messages."""
        return self.file


Registered = SeqioTask | TextToText  # registered with seqio under a name
TextBySeqio = TextData | SeqioTask
ReadBySeqio = TextBySeqio | TextToText
Data = TextBySeqio | Blocks  # text, which can be scored as well
TrainingData = Data | TextToText | Synthetic


class Tokenized(Protocol):
    """Data whose tokens represent text."""

    @property
    def vocabulary(self) -> str: ...


def check_reading(data: Registered) -> None:
    """Raise UserError if `shuffle_buffer` or `cache_dirs` is invalid."""
    kind = type(data).__name__
    if data.shuffle_buffer < 1:
        raise UserError(f"{kind}.shuffle_buffer must be at least 1, not {data.shuffle_buffer}.")
    if data.cache_dirs and not data.use_cached:
        raise UserError(f"{kind}.cache_dirs has no effect without {kind}.use_cached=True.")
