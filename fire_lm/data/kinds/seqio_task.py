"""Text of tasks that are registered with seqio."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from fire_lm.data.kinds.by_seqio import Reader, Registered, TextBySeqio
from fire_lm.data.spec import Construction


@dataclasses.dataclass(frozen=True)
class SeqioTask(Registered, TextBySeqio):
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
    feature_hint: ClassVar[str] = ": set --gin.SeqioTask.feature=NAME"
    paths: ClassVar[dict[str, str]] = {"vocabulary": "vocabulary", "cache_dirs": "data"}

    @property
    def token_features(self) -> tuple[str, ...]:
        return (self.feature,)

    def unknown_share(self, split: str) -> float:
        if self.vocabulary == "bytes":
            return 0.0
        documents = dataclasses.replace(self, construction="cut")  # each document yields rows
        return documents.scoring_text(length=64, num_sequences=64, split=split).unknown

    @property
    def reader(self) -> Reader:
        from fire_lm.data.on_the_fly import registered

        return registered
