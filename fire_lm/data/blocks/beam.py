"""The parts of a set of blocks written by Apache Beam's workers, an element a part.

Needs the extra `cache` (`pip install 'fire-lm[cache]'`), and on the workers this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fire_lm.data.blocks.writer import PartToWrite, RunParts
from fire_lm.errors import FireLMError, RunFailed, UserError


def parts_runner(runner: str, options: Sequence[str]) -> RunParts:
    """Runs a function once for each part with this runner of Beam.

    Raises:
        UserError: Beam is not installed, or knows no such runner or option.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
    except ModuleNotFoundError as error:
        raise UserError(
            f"--runner={runner} needs Apache Beam, which is not installed ({error.name}).\n"
            "pip install 'fire-lm[cache]', or leave --runner out to write in this process."
        ) from error
    flags = [f"--runner={runner}", *(f"--{option.lstrip('-')}" for option in options)]

    def run(jobs: Sequence[PartToWrite], write: Callable[[PartToWrite], object]) -> None:
        try:
            with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
                parts = pipeline | beam.Create(list(jobs)) | beam.Reshuffle()
                parts | beam.Map(write)
        except FireLMError:
            raise
        except Exception as error:  # Beam wraps what a worker raises in errors of its own
            first_line = str(error).strip().split("\n")[0]
            raise RunFailed(f"Beam's {runner} failed: {first_line}") from error

    return run
