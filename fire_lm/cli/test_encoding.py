"""`fire-lm test-encoding`, which checks the properties of an encoding outside the repository."""

from __future__ import annotations

import argparse
import traceback

import jax

from fire_lm.encoding_properties import PROPERTIES, encodings_of, explain, lacks
from fire_lm.errors import RunFailed
from fire_lm.hardware.program_cache import keep_programs


def run(arguments: argparse.Namespace) -> None:
    """Check all properties of the encodings, explain each that is missing, and then fail."""
    jax.config.update("jax_platforms", "cpu")  # the tolerances are those of float32 on a CPU
    jax.config.update("jax_disable_most_optimizations", True)  # compiling takes most of the time
    keep_programs()
    missing: dict[str, list[str]] = {}
    for name, encoding in encodings_of(arguments.encoding).items():
        for check in PROPERTIES:
            error = lacks(check, encoding)
            print(f"{name} {check.__name__}: {'no' if error else 'yes'}", flush=True)
            if error is None:
                continue
            missing.setdefault(name, []).append(check.__name__)
            if arguments.debug:
                traceback.print_exception(error)
            explanation = explain(name, check, encoding, error, "--debug").rstrip("\n")
            print("\n" + "".join(f"  {line}".rstrip() + "\n" for line in explanation.split("\n")))
    if missing:
        lacking = "; ".join(
            f"{name} lacks {len(names)} of {len(PROPERTIES)} properties: {', '.join(names)}"
            for name, names in missing.items()
        )
        raise RunFailed(lacking)
    print(f"all {len(PROPERTIES)} properties hold")
