"""Examples of an input and its target, of registered tasks or in a file of the user."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING, ClassVar

from fire_lm.data import pairs
from fire_lm.data.base import not_text_of_task
from fire_lm.data.kinds.by_seqio import Reader, Registered
from fire_lm.data.task_examples import TaskExamples
from fire_lm.data.truncation import TRUNCATIONS, Truncation
from fire_lm.errors import UserError

if TYPE_CHECKING:
    import seqio

_NOT_IN_NAMES = re.compile(r"[^\w.:#]")  # characters that seqio refuses in names of tasks


@dataclasses.dataclass(frozen=True)
class TextToText(Registered):
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
    token_features: ClassVar[tuple[str, ...]] = ("inputs", "targets")  # type: ignore[override]
    ignores_features: ClassVar[bool] = True
    feature_hint: ClassVar[str] = (
        ": an example needs both inputs and targets\n"
        "to train on text without inputs, use --gin_file=configs/data/seqio.gin"
    )
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
        super().__post_init__()

    @property
    def is_ours(self) -> bool:
        """Whether this is a task whose data `fire-lm corpus tasks` writes to `data_dir`."""
        return bool(self.data_dir) and self.name.startswith("fire_lm:")

    @property
    def construction(self) -> str:
        counted = ", inputs in the loss" * self.train_on_inputs
        return (
            f"one example per row, targets of up to {self.target_length} tokens, input truncation "
            f"{self.truncation!r}{counted}"
        )

    @property
    def saved_construction(self) -> str:
        counted = ", inputs in the loss" * self.train_on_inputs
        return (
            f"an example a row, targets to {self.target_length}, inputs cut to {self.truncation}"
            f"{counted}"
        )

    @property
    def in_words(self) -> str:
        return f"{self.name}, {self.construction}"

    @property
    def not_text(self) -> str:
        return not_text_of_task(self.title)

    @property
    def features(self) -> tuple[str, ...]:
        return ("targets", "weights")

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

    @functools.cached_property
    def provider(self) -> seqio.Task | seqio.Mixture:
        """The Task or Mixture, which need not be registered if fire_lm defines it."""
        if self.is_ours:
            from fire_lm.data.suites import seqio_tasks

            return seqio_tasks.task_or_mixture(self.name, self.data_dir, self.vocabulary)
        return super().provider

    def unknown_share(self, split: str) -> float:
        from fire_lm.data.on_the_fly import text_to_text

        return text_to_text.unknown_share(self, split)

    def task_examples(
        self, *, split: str, longest: int, count: int | None = None
    ) -> list[TaskExamples]:
        """Return the examples of the task, or of each task in a mixture, in the source's order.

        Args:
          longest: The maximum number of input tokens to keep, not counting the end token.
          count: The number of examples to read from the beginning of each task; None reads all.

        Raises:
          UserError: A task, its split or its vocabulary cannot be read, the task has no metric or
            no examples, or two examples have the same id.
          RunFailed: The data is damaged.
        """
        from fire_lm.data.on_the_fly import evaluation_rows

        return evaluation_rows.task_examples(self, split=split, longest=longest, count=count)

    @property
    def reader(self) -> Reader:
        from fire_lm.data.on_the_fly import text_to_text

        return text_to_text

    def described(self, documents: int) -> str:
        count = f"{documents:,} examples" if documents else "examples"
        return f"{count} of {self.title} through seqio, {self.construction}"


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
      name: The name of the task in tables; by default, the name of the file up to its first dot,
        with _ for every character that seqio does not allow in names.
    """

    name: str = dataclasses.field(default="", kw_only=True)
    file: str = dataclasses.field(kw_only=True)
    sha256: str = dataclasses.field(default="", kw_only=True)
    validation_share: float = dataclasses.field(default=0.05, kw_only=True)
    # `_folder` of `fire_lm.runs.inputs` resolves the path of a file, too.
    paths: ClassVar[dict[str, str]] = TextToText.paths | {"file": "data"}

    def __post_init__(self) -> None:
        if not self.name:
            file = self.file.rpartition("/")[2].partition(".")[0]
            object.__setattr__(self, "name", _NOT_IN_NAMES.sub("_", file) or "pairs")
        if _NOT_IN_NAMES.search(self.name):
            raise UserError(
                f"Pairs.name is {self.name!r}: it must consist of letters, digits, and . : _ #"
            )
        if not 0 < self.validation_share < 1:
            raise UserError(
                f"Pairs.validation_share is {self.validation_share:g}: it must be between 0 and 1"
            )
        super().__post_init__()

    @property
    def where(self) -> str:
        return self.file

    def note(self, length: int) -> str:
        return pairs.summary(self, self.input_length(length))

    @functools.cached_property
    def provider(self) -> seqio.Task:
        from fire_lm.data.on_the_fly import pair_tasks

        return pair_tasks.task(self)

    def digests(self) -> dict[str, str]:
        return {"SHA-256 of the pairs": pairs.file_sha256(self.file)}
