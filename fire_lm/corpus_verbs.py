"""What `fire-lm corpus` and its parts do: write data sets, train a vocabulary, check text."""

from __future__ import annotations

import argparse

from fire_lm.data import write_embedded_corpus
from fire_lm.errors import UserError
from fire_lm.metrics import Progress


def corpus(arguments: argparse.Namespace) -> None:
    """`fire-lm corpus`: the bundled text, or the documents of --from, as a TFDS data set."""
    if arguments.source:
        write_from_files(arguments)
        return
    given = [f"--{n}" for n in ("name", "text_field", "validation_percent", "whole_files")
             if getattr(arguments, n)]  # fmt: skip
    if given:
        raise UserError(f"{given[0]} is for documents of one's own: add --from=FILE_OR_FOLDER")
    summary = write_embedded_corpus(arguments.data_dir, lambda text: print(text, flush=True))
    for split, documents in summary.documents.items():
        print(f"{split}: {documents:,} documents, {summary.bytes[split] / 1e6:.1f} MB")
    print(f"{summary.skipped:,} files left out (too short, too long or not UTF-8)")
    print(f"read it with --gin.DATA_DIR={arguments.data_dir}")


def write_from_files(arguments: argparse.Namespace) -> None:
    from fire_lm.data.text_corpus import write_text_corpus

    if not arguments.name:
        raise UserError("--from needs --name=NAME, what the data set is called: arxiv, github, ...")
    percent = arguments.validation_percent
    with Megabytes("reading and writing") as on_bytes:
        written = write_text_corpus(
            arguments.source,
            arguments.data_dir,
            arguments.name,
            text_field=None if arguments.whole_files else arguments.text_field or "text",
            validation_percent=6.0 if percent is None else percent,
            on_bytes=on_bytes,
        )
    if not written.written:
        print(f"{arguments.data_dir} holds this text already: nothing to do")
    for split, documents in written.documents.items():
        print(f"{split}: {documents:,} documents, {written.bytes[split] / 1e6:.1f} MB")
    left_out = (f"{count:,} {why}" for why, count in sorted(written.left_out.items()))
    print(f"documents left out: {', '.join(left_out) or 'none'}")
    print(
        f"read it with --gin.DATA_DIR={arguments.data_dir} "
        f"--gin.TextData.tfds_name={written.tfds_name}"
    )


class Megabytes:
    """A progress bar in MB, for functions that report bytes done and bytes in all."""

    def __init__(self, text: str):
        self._text = text
        self._bar: Progress | None = None

    def __enter__(self) -> Megabytes:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = Progress(max(1, total // 10**6))
        self._bar.show(done // 10**6, f"MB, {self._text}")

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
