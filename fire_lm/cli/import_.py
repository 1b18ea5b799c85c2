"""`fire-lm import`, which writes a Hugging Face model as a run directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from fire_lm.errors import UserError
from fire_lm.interop.import_run import Gin, read_folder, write_run
from fire_lm.storage import children, in_bucket, place
from fire_lm.training.start import ensure_writable


def run(arguments: argparse.Namespace) -> None:
    if in_bucket(arguments.source):
        raise UserError("--from must be a local folder: copy it from the bucket first")
    if children(place(arguments.output)):
        raise UserError(
            f"--output {arguments.output} exists and is not an empty folder: choose another"
        )
    more = Gin(
        arguments.gin_file, arguments.bindings, arguments.gin_search_paths, arguments.imports
    )
    imported = read_folder(Path(arguments.source), more)
    ensure_writable(arguments.output, "--output")
    write_run(imported, arguments.output)
    label, remark = imported.experiment.label, f"; {imported.remark}" if imported.remark else ""
    print(f"{arguments.output}: {label} at step 0, from {arguments.source}{remark}")
    print(f"continue training with --gin.INIT_FROM={arguments.output} in another --workdir")
