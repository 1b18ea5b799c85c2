"""Apache Beam workers, configured by the user's options, with readable error messages.

This module needs the extra `cache` or `dataflow` (`pip install -e '.[dataflow]'`), and fire_lm
must be installed on the workers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fire_lm.errors import FireLMError, RunFailed, UserError


@dataclasses.dataclass(frozen=True)
class BeamWorkers:
    """The Beam runner and the options with which pipelines are run.

    Attributes:
      runner: The name of a runner, such as DirectRunner, DataflowRunner, FlinkRunner or
        SparkRunner.
      flags: Options of Beam and of the runner, each in the form `--NAME=VALUE`.

    Raises:
      UserError: Beam is not installed, has no such runner, or rejects one of the flags.
    """

    runner: str
    flags: Sequence[str] = ()

    def __post_init__(self):
        dataflow = "dataflow" in self.runner.lower()
        try:
            from apache_beam.runners.runner import create_runner

            if dataflow:  # Beam itself imports this only after all documents have been counted
                from apache_beam.runners.dataflow.internal import apiclient  # noqa: F401
        except ImportError as error:
            raise UserError(
                f"--runner={self.runner} needs Apache Beam, which is not installed "
                f"({error.name})\n"
                f"Run `pip install -e '.[{'dataflow' if dataflow else 'cache'}]'` in the checkout, "
                "or omit --runner to write in this process"
            ) from error
        try:
            create_runner(self.runner)
        except (ValueError, ImportError) as error:
            raise UserError(f"--runner={self.runner}: {_reason(error)}") from error
        self._check_flags()

    def _check_flags(self) -> None:
        """Raise UserError with a short message for an invalid flag.

        With DirectRunner, an unknown flag is invalid too. Beam itself prints its complete usage
        text for an invalid flag and only logs unknown flags.
        """
        options = self.options()  # must precede the redirection: this connects the log to stderr
        usage = io.StringIO()
        try:
            with contextlib.redirect_stderr(usage):
                accepted = options.get_all_options(retain_unknown_options=True)
        except SystemExit as error:
            problem = usage.getvalue().rpartition("error: ")[2].strip()
            raise UserError(f"--runner_options: {problem}") from error
        # Every other runner forwards unknown flags.
        if self.runner.lower() in ("direct", "directrunner"):
            if unknown := sorted(accepted.keys() - options.get_all_options().keys()):
                raise UserError(f"--runner_options: DirectRunner has no option --{unknown[0]}")

    def options(self) -> Any:
        """Return new `PipelineOptions` with the runner and the flags."""
        from apache_beam.options.pipeline_options import PipelineOptions

        flags = (f"--{flag.lstrip('-')}" for flag in self.flags)
        return PipelineOptions([f"--runner={self.runner}", *flags])

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Convert Beam's exceptions within the block to RunFailed and keep the worker's message."""
        try:
            yield
        except FireLMError as error:
            raise type(error)(_plain(str(error))) from error
        except Exception as error:  # Beam wraps a worker's exception in its own classes
            raise RunFailed(f"Beam's {self.runner} failed: {_reason(error)}") from error

    @contextlib.contextmanager
    def pipeline(self) -> Iterator[Any]:
        """Yield a `Pipeline` that runs when the block ends."""
        import apache_beam as beam

        with self.failures(), beam.Pipeline(options=self.options()) as pipeline:
            yield pipeline

    def run_each(self, jobs: Sequence[Any], function: Callable[[Any], object]) -> None:
        """Call a function on the workers for each job, which is one element of Beam."""
        import apache_beam as beam

        with self.pipeline() as pipeline:
            pipeline | beam.Create(list(jobs)) | beam.Reshuffle() | beam.Map(function)


def _reason(error: Exception) -> str:
    """Return the message of the fire_lm error in a worker's traceback.

    If there is no such error, the first line of the traceback is returned or, if that line ends in
    a colon, the complete text on one line.
    """
    text = str(error).strip()
    if ours := re.search(r"^fire_lm\.errors\.\w+: (.*)$", text, re.MULTILINE):
        return _plain(ours.group(1))
    first, *others = (line.strip() for line in text.split("\n"))
    return " ".join([first, *others]) if first.endswith(":") else first


def _plain(message: str) -> str:
    """Remove the internal name of the pipeline step that Beam appends to a message."""
    return re.sub(r"\s*\[while running '.*'\]$", "", message)
