"""Data sets of task suites, which are written once with TFDS and read through seqio tasks.

Importing this module is cheap, because TensorFlow is imported only when a function is called.
"""

from __future__ import annotations


def register(data_dir: str, vocabulary: str) -> list[str]:
    """Register a folder's tasks and mixtures; see `seqio_tasks.register`."""
    from fire_lm.data.suites import seqio_tasks

    return seqio_tasks.register(data_dir, vocabulary)
