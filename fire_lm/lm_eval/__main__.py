"""The command line of lm-evaluation-harness, with the additional model `fire_lm`.

    python -m fire_lm.lm_eval run --model fire_lm --model_args run=RUN --tasks NAME

In a job with several processes, process 0 runs the harness, and all processes compute its requests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax

from fire_lm.cli.startup import prepare_process
from fire_lm.console import standard_streams
from fire_lm.errors import FireLMError, ReaderEnded, UserError, printable
from fire_lm.hardware.backends import backend_problem
from fire_lm.hardware.program_cache import keep_programs
from fire_lm.processes import initialize_distributed

_LACKING = "lm-evaluation-harness is not installed: run pip install -e '.[lm-eval]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the harness with the given arguments, or those of the process; return the exit code."""
    with standard_streams() as output:
        if output is not None:
            output.required = True
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    prepare_process()
    keep_programs()
    try:
        try:
            from lm_eval.__main__ import HarnessCLI
            from lm_eval.api.registry import model_registry
            from lm_eval.utils import setup_logging
        except ImportError as error:
            raise UserError(f"{_LACKING} ({error})") from error
        from fire_lm.lm_eval.engine import dismiss, follow

        initialize_distributed()
        if jax.process_index():
            follow()
            return 0
        if "fire_lm" not in model_registry:
            model_registry.register("fire_lm", target="fire_lm.lm_eval.model:FireLM")
        setup_logging()
        if argv is not None:
            sys.argv = ["lm_eval", *argv]
        harness = HarnessCLI()
        try:
            harness.execute(harness.parse_args())
        finally:
            dismiss()
        sys.stdout.flush()
    except FireLMError as error:
        if not isinstance(error, ReaderEnded):
            print(f"\nfire-lm: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except (RuntimeError, AssertionError):
        problem = backend_problem()
        if problem is None:
            raise
        print(f"\nfire-lm: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
