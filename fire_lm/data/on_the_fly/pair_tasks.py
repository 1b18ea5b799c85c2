"""The seqio task for pairs in a file of JSON lines. The pairs are read into memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from fire_lm.data import vocabularies
from fire_lm.data.pairs import Pair, splits_of
from fire_lm.data.quiet_tensorflow import seqio, tf
from fire_lm.tasks.metrics import F1, Identical
from fire_lm.tasks.suites.postprocess import references

if TYPE_CHECKING:
    from fire_lm.data.kinds import Pairs


def task(data: Pairs) -> seqio.Task:
    """Return the task, which is not registered.

    Raises:
      UserError: The file or the vocabulary cannot be read.
    """
    splits = {name: tuple(pairs) for name, pairs in splits_of(data).items()}
    return _task(data.name, data.vocabulary, splits["train"], splits["validation"])


@functools.lru_cache(maxsize=2)
def _task(
    name: str, vocabulary: str, train: tuple[Pair, ...], validation: tuple[Pair, ...]
) -> seqio.Task:
    splits = {"train": train, "validation": validation}

    def examples(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        pairs = splits[split]
        order = np.arange(len(pairs))
        if shuffle_files:  # the file may be sorted, and pipeline.py shuffles only nearby rows
            order = np.random.default_rng(seed).permutation(len(pairs))
        chosen = [pairs[place] for place in order]
        return tf.data.Dataset.from_tensor_slices(
            {
                "id": [str(pair.line) for pair in chosen],
                "inputs": [pair.inputs for pair in chosen],
                "targets": [pair.targets for pair in chosen],
                "answers": [[pair.targets] for pair in chosen],
            }
        )

    feature = seqio.Feature(vocabularies.load(vocabulary), add_eos=True)
    return seqio.Task(
        name,
        source=seqio.FunctionDataSource(
            examples,
            splits=tuple(splits),
            num_input_examples={split: len(pairs) for split, pairs in splits.items()},
        ),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=references,
        metric_fns=[Identical(), F1()],
        shuffle_buffer_size=1,
    )
