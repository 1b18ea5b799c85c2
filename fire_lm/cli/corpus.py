"""`fire-lm corpus` and its parts, which write data sets, train vocabularies and check text."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from etils import epath

from fire_lm.cli.corpus_tasks import write_tasks
from fire_lm.console import Progress, columns
from fire_lm.data import (
    CONSTRUCTIONS,
    BeamWorkers,
    TextData,
    embedded_documents,
    only_data_set,
    unknown_warning,
    write_corpus,
)
from fire_lm.errors import UserError
from fire_lm.reporting.corpus_lengths import length_figure, length_table
from fire_lm.storage import make_folder

if TYPE_CHECKING:
    from fire_lm.data.on_the_fly.survey import Arranged, Contents


def run(arguments: argparse.Namespace) -> None:
    if not arguments.data_dir:
        raise UserError("corpus needs --data_dir=DIR, the folder of the data set")
    parts = {None: write, "vocab": vocab, "check": check, "blocks": blocks, "tasks": write_tasks}
    parts[arguments.part](arguments)


def write(arguments: argparse.Namespace) -> None:
    """Write the embedded text or, with --from, the given documents as a TFDS data set."""
    if arguments.source is not None:
        write_from_files(arguments)
        return
    own = (
        *("name", "text_field", "validation_percent", "whole_files", "split_on"),
        *("runner", "runner_options"),
    )
    given = [f"--{name}" for name in own if getattr(arguments, name) is not None]
    if given:
        raise UserError(f"{given[0]} applies only to your documents: add --from=FILE_OR_FOLDER")
    said = functools.partial(print, flush=True)
    summary = write_corpus(arguments.data_dir, embedded_documents(), said)
    for split, documents in summary.documents.items():
        print(f"{split}: {documents:,} documents, {summary.bytes[split] / 1e6:.1f} MB")
    print(f"{summary.skipped:,} files skipped (too short, too long or not UTF-8)")
    print(f"read it with --gin.DATA_DIR={arguments.data_dir}")


def write_from_files(arguments: argparse.Namespace) -> None:
    from fire_lm.data.corpora.text_corpus import write_text_corpus

    if not arguments.name:
        raise UserError("--from needs --name=NAME, the name of the data set, such as arxiv")
    if arguments.whole_files and arguments.text_field:
        raise UserError("--whole_files and --text_field cannot be combined: omit one of them")
    percent = arguments.validation_percent
    with bar("MB read", 10**6) as on_bytes:
        written = write_text_corpus(
            arguments.source,
            arguments.data_dir,
            arguments.name,
            text_field=None if arguments.whole_files else arguments.text_field or "text",
            validation_percent=6.0 if percent is None else percent,
            split_on=arguments.split_on,
            on_bytes=on_bytes,
            workers=beam_workers(arguments),
        )
    if not written.written:
        print(
            f"{arguments.data_dir} was written from the same files (same names, sizes and times): "
            "nothing to do"
        )
    for split, documents in written.documents.items():
        print(f"{split}: {documents:,} documents, {written.bytes[split] / 1e6:.1f} MB")
    left_out = (f"{count:,} {why}" for why, count in sorted(written.left_out.items()))
    print(f"documents skipped: {', '.join(left_out) or 'none'}")
    print(
        f"read it with --gin.DATA_DIR={arguments.data_dir} "
        f"--gin.TextData.tfds_name={written.tfds_name}"
    )


def beam_workers(arguments: argparse.Namespace) -> BeamWorkers | None:
    if arguments.runner:
        return BeamWorkers(arguments.runner, tuple(arguments.runner_options or ()))
    if arguments.runner_options:
        raise UserError(
            "--runner_options needs a Beam runner: add --runner=DirectRunner or another"
        )
    return None


def vocab(arguments: argparse.Namespace) -> None:
    """Run `fire-lm corpus vocab`: train a lossless vocabulary."""
    from fire_lm.data.corpora.vocabulary_training import train_vocabulary

    data = [only_data_set(arguments.data_dir, name) for name in arguments.tfds_name or [None]]
    with bar("MB read; training follows and takes minutes", 10**6) as on_bytes:
        trained = train_vocabulary(
            data,
            arguments.output,
            size=arguments.size,
            megabytes=arguments.megabytes,
            split_digits=arguments.split_digits,
            on_bytes=on_bytes,
        )
    print(
        f"{arguments.output}: {trained.size:,} ids from {trained.documents:,} documents, "
        f"{trained.bytes / 1e6:.1f} MB of {', '.join(one.tfds_name for one in data)}\n"
        f"use it with --gin.VOCABULARY={arguments.output} --gin.VOCAB_SIZE={trained.size}"
    )


def chosen_text(arguments: argparse.Namespace) -> TextData:
    data = only_data_set(arguments.data_dir, arguments.tfds_name)
    return dataclasses.replace(data, vocabulary=arguments.vocabulary)


def check(arguments: argparse.Namespace) -> None:
    """Run `fire-lm corpus check`: report the contents of each split, and of its rows.

    The rows of the train split are reported only if there is no other split.
    """
    from fire_lm.data.on_the_fly import metadata, survey

    data = chosen_text(arguments)
    lengths = sorted(set(arguments.lengths))
    if not lengths or lengths[0] < 2:
        raise UserError(f"--lengths {lengths}: give lengths of 2 or more")
    picture = epath.Path(arguments.output)
    make_place(picture)
    splits = {}
    for split in metadata.splits(data):
        with bar(f"documents of {split}") as on_document:
            splits[split] = survey.survey(data, split, arguments.documents, on_document)
    print(f"\n{data.tfds_name} in {data.data_dir}, vocabulary {data.vocabulary}")
    print(contents_table(splits))
    tokens = {split: contents.tokens for split, contents in splits.items()}
    print(f"\n{length_table(tokens)}")
    for split in [split for split in splits if split != "train"] or ["train"]:
        print(
            f"\nthe {split} split in rows of {lengths[-1]} tokens, which are divided for shorter "
            "lengths (a sweep chooses its rows by length_sweep.tokens)"
        )
        rows = [
            row
            for construction in CONSTRUCTIONS
            for row in survey.row_contents(construction, splits[split].tokens, lengths)
        ]
        print(row_table(rows))
    length_figure(tokens, f"{data.tfds_name}, {data.vocabulary}", picture)
    print(f"\nfigure: {arguments.output}")
    for split, contents in splits.items():
        if warning := unknown_warning(contents.unknown_share, split, data):
            print(warning)


def make_place(file: epath.Path) -> None:
    """Create the output file's folder, or raise UserError before hours of reading the data set."""
    try:
        make_folder(file.parent)
    except OSError as error:
        raise UserError(f"Cannot write {file}: {error.strerror or error}") from error
    if file.is_dir():
        raise UserError(f"Cannot write {file}: it is a folder; choose a file in it")


def contents_table(splits: Mapping[str, Contents]) -> str:
    rows = [["", "documents", "skipped", "duplicates", "tokens", "bytes", "bytes/token", "unknown"]]
    for split, contents in splits.items():
        documents, tokens = len(contents.tokens), int(contents.tokens.sum())
        counts = documents, contents.skipped, contents.duplicates, tokens, contents.text_bytes
        ratios = [f"{contents.text_bytes / max(1, tokens):.2f}", f"{contents.unknown_share:.2%}"]
        rows.append([split, *(f"{count:,}" for count in counts), *ratios])
    lines = columns(rows, words=0)
    for number, contents in enumerate(splits.values(), 1):
        lines[number] += "  (first documents only)" * (not contents.whole)
    for one, other in itertools.combinations(splits, 2):
        both = len(splits[one].digests & splits[other].digests)
        whole = splits[one].whole and splits[other].whole
        of_some = "" if whole else " (among the documents that were read)"
        lines.append(f"texts in both {one} and {other}{of_some}: {both:,}")
    return "\n".join(lines)


def row_table(rows: Sequence[Arranged]) -> str:
    cells = [["  construction", "length", "sequences", "tokens", "padding", "documents"]]
    for row in rows:
        counts = f"{row.length:,}", f"{row.sequences:,}", f"{row.tokens:,}"
        cells.append([f"  {row.construction}", *counts, f"{row.padding:.1%}", f"{row.documents:,}"])
    return "\n".join(columns(cells, words=1))


def blocks(arguments: argparse.Namespace) -> None:
    """Run `fire-lm corpus blocks`: tokenise a data set for configs/data/blocks.gin."""
    from fire_lm.data.blocks.writer import write_blocks

    workers = beam_workers(arguments)
    data = chosen_text(arguments)
    with bar("documents") as on_document:
        manifest = write_blocks(
            data,
            arguments.output,
            splits=arguments.splits,
            parts=arguments.parts,
            progress=on_document,
            workers=workers,
        )
    for split, parts in manifest.splits.items():
        documents, skipped, tokens, text = (
            sum(getattr(part, name) for part in parts)
            for name in ("documents", "skipped", "tokens", "bytes")
        )
        print(
            f"{split}: {documents:,} documents ({skipped:,} of them empty, undecodable or huge), "
            f"{tokens:,} tokens for {text / 1e6:,.1f} MB of text, parts: {len(parts)}"
        )
        if warning := unknown_warning(manifest.unknown_share(split), split, data):
            print(warning)
    print(f"read them with --gin_file=configs/data/blocks.gin --gin.DATA_DIR={arguments.output}")


@contextlib.contextmanager
def bar(text: str, unit: int = 1) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the completed amount of the total amount as a progress bar."""
    bars: list[Progress] = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(Progress(total, unit=unit))
        bars[0].show(done, text)

    try:
        yield show
    finally:
        for opened in bars:
            opened.close()
