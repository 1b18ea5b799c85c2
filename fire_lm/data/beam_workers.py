"""Apache Beam: its options as a user gives them, and its failures as a user can read them.

Needs the extra `cache` (`pip install 'fire-lm[cache]'`), and on the workers this package.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from fire_lm.errors import FireLMError, RunFailed, UserError


@dataclasses.dataclass(frozen=True)
class BeamWorkers:
    """Where pipelines run.

    Attributes:
        runner: DirectRunner, DataflowRunner, FlinkRunner, SparkRunner, ...
        flags: options of Beam and of the runner, `--NAME=VALUE` each.

    Raises:
        UserError: Beam is not installed, or has no such runner.
    """

    runner: str
    flags: Sequence[str] = ()

    def __post_init__(self):
        try:
            from apache_beam.runners.runner import create_runner
        except ModuleNotFoundError as error:
            raise UserError(
                f"--runner={self.runner} needs Apache Beam, which is not installed "
                f"({error.name}).\n"
                "pip install 'fire-lm[cache]', or leave --runner out to write in this process."
            ) from error
        try:
            create_runner(self.runner)
        except (ValueError, ImportError) as error:
            raise UserError(f"--runner={self.runner}: {_reason(error)}") from error

    def options(self) -> Any:
        """A new `PipelineOptions`."""
        from apache_beam.options.pipeline_options import PipelineOptions

        given = (f"--{flag.lstrip('-')}" for flag in self.flags)
        return PipelineOptions([f"--runner={self.runner}", *given])

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Raises RunFailed in place of what Beam raises, with the worker's own words."""
        try:
            yield
        except FireLMError:
            raise
        except Exception as error:  # Beam wraps what a worker raises in errors of its own
            raise RunFailed(f"Beam's {self.runner} failed: {_reason(error)}") from error

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Any]:
        """A `Pipeline`, which runs at the end of the block."""
        import apache_beam as beam

        with self.failures(), beam.Pipeline(options=self.options()) as pipeline:
            yield pipeline


def _reason(error: Exception) -> str:
    """The message of our own error that a worker's traceback ends in, else the first line."""
    text = str(error).strip()
    ours = re.search(r"^fire_lm\.errors\.\w+: (.*)$", text, re.MULTILINE)
    return ours.group(1) if ours else text.partition("\n")[0]
