"""Apache Beam workers that write the parts of a set of blocks, with one Beam element per part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.blocks.writer import PartToWrite, RunParts


def parts_runner(workers: BeamWorkers) -> RunParts:
    """Return a `RunParts` function that calls its second argument on the workers for each part."""
    import apache_beam as beam

    def run(jobs: Sequence[PartToWrite], write: Callable[[PartToWrite], object]) -> None:
        with workers.pipeline() as pipeline:
            parts = pipeline | beam.Create(list(jobs)) | beam.Reshuffle()
            parts | beam.Map(write)

    return run
