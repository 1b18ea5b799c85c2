"""Data sets of suites of tasks, written once as TFDS and read through seqio tasks.

Importing this module is cheap; its functions import TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import seqio


def task_or_mixture(name: str, data_dir: str, vocabulary: str) -> seqio.Task | seqio.Mixture:
    """See `seqio_tasks.task_or_mixture`."""
    from fire_lm.data.suites import seqio_tasks

    return seqio_tasks.task_or_mixture(name, data_dir, vocabulary)


def register(data_dir: str, vocabulary: str) -> list[str]:
    """See `seqio_tasks.register`."""
    from fire_lm.data.suites import seqio_tasks

    return seqio_tasks.register(data_dir, vocabulary)
