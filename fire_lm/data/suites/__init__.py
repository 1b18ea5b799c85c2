"""Data sets of task suites, which are written once with TFDS and read through seqio tasks.

Importing this module is cheap, because TensorFlow is imported only when a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import seqio


def task_or_mixture(name: str, data_dir: str, vocabulary: str) -> seqio.Task | seqio.Mixture:
    """Return the named task or mixture; see `seqio_tasks.task_or_mixture`."""
    from fire_lm.data.suites import seqio_tasks

    return seqio_tasks.task_or_mixture(name, data_dir, vocabulary)


def register(data_dir: str, vocabulary: str) -> list[str]:
    """Register a folder's tasks and mixtures; see `seqio_tasks.register`."""
    from fire_lm.data.suites import seqio_tasks

    return seqio_tasks.register(data_dir, vocabulary)
