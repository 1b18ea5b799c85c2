"""Tokenisation of a data set into blocks, with the seqio task that also reads it on the fly.

Each split is written in independent parts of about a gigabyte of text. This process writes the
parts one after another, or Beam distributes them over its workers. A small file in each part is
written after the part's arrays, and the manifest is written after all parts. After an interruption,
writing therefore resumes with the unfinished parts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fire_lm.data import stores, vocabularies
from fire_lm.data.beam_workers import BeamWorkers
from fire_lm.data.blocks import manifest as manifests
from fire_lm.data.blocks.manifest import Identity, Manifest, Part
from fire_lm.data.blocks.stream import BYTE_COUNTS, ENDS, LAYOUT, TOKENS, part_path
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.data.on_the_fly import metadata, preprocessors, tasks
from fire_lm.data.on_the_fly.source import reading
from fire_lm.data.quiet_tensorflow import seqio
from fire_lm.errors import RunFailed, UserError

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextData

# The size of a part's text. A smaller split becomes a single part, which preserves the order in
# which seqio reads the split's files. The scored rows are then the same as on the fly.
PART_BYTES = 2**30
_PART_FILE = "part.json"

# A callback that receives the number of documents written so far and the total.
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class PartToWrite:
    """A part of a split, with all settings that are needed to write it.

    `source_documents` and `source_bytes` are the sizes of the complete split.
    """

    data: TextData
    output: str
    identity: Identity
    split: str
    index: int
    count: int
    source_documents: int
    source_bytes: int

    @property
    def path(self) -> str:
        return part_path(self.output, self.split, self.index, self.count)

    def facts(self) -> dict[str, Any]:
        """Return the properties that an existing part must have to be accepted as this part."""
        return {
            "identity": dataclasses.asdict(self.identity),
            "documents": self.source_documents,
            "bytes": self.source_bytes,
        }


def write_blocks(
    data: TextData,
    output: str,
    *,
    splits: Sequence[str] = (),
    parts: int | None = None,
    progress: Progress = lambda done, total: None,
    workers: BeamWorkers | None = None,
) -> Manifest:
    """Write the given splits as blocks and keep the parts that already exist.

    Args:
      data: The text and its vocabulary; the construction is ignored.
      output: The directory of the set of blocks, which may be local or in a bucket (gs://, s3://).
      splits: The splits of the data set to write; by default, all splits.
      parts: The number of parts in each split, at most one per source file. The default is one
        part per gigabyte of text.
      progress: A callback that periodically receives the number of documents written and the
        total. It is not called if `workers` is given.
      workers: Beam workers, which write the parts. By default, this process writes them one by one.

    Raises:
      UserError: The text or vocabulary is unsuitable, or `output` contains other files.
      RunFailed: Reading or writing failed.
    """
    if data.mixture:
        raise UserError(
            f"Blocks contain a single data set, not a mixture ({data.title})\n"
            "Write blocks for each data set separately, without TextData.mixture"
        )
    if "://" in output and not output.startswith(("gs://", "s3://")):  # memory:// would be lost
        raise UserError(f"{output} is neither a local path nor a gs:// or s3:// path")
    info = metadata.dataset_info(data)
    splits = tuple(splits) or tuple(sorted(info.splits))
    identity = _identity(data)
    existing = manifests.read(output)
    _check_output(output, existing, identity, set(info.splits))
    to_write: dict[str, list[PartToWrite]] = {}
    for split in splits:
        documents = tasks.check(data, length=2, split=split)
        of = info.splits[split]
        count = max(1, min(parts or -(-of.num_bytes // PART_BYTES), of.num_shards))
        earlier = len(existing.splits.get(split, ())) if existing else 0
        if parts and earlier not in (0, count):
            raise UserError(
                f"The number of parts of the {split} split in {output} is {earlier}, not {count}\n"
                "Omit --parts, or choose a new directory: --output=DIR"
            )
        count = earlier or count
        to_write[split] = [
            PartToWrite(data, output, identity, split, index, count, documents, of.num_bytes)
            for index in range(count)
        ]
    _run(to_write, progress, workers)
    written = {split: tuple(_whole_split(jobs)) for split, jobs in to_write.items()}
    manifest = Manifest(identity, {**(existing.splits if existing else {}), **written})
    if manifest != existing:
        manifests.write(output, manifest)
    return manifest


def write_part(job: PartToWrite, progress: Callable[[int], None] = lambda documents: None) -> Part:
    """Write a part, or read its description if the part already exists."""
    finished = _finished(job)
    if finished is not None:
        progress(finished.documents)
        return finished
    part = _write_arrays(job, progress)
    manifests.write_json(
        stores.join(job.path, _PART_FILE), {**job.facts(), "part": dataclasses.asdict(part)}
    )
    return part


def _run(
    to_write: dict[str, list[PartToWrite]], progress: Progress, workers: BeamWorkers | None
) -> None:
    jobs = [job for jobs in to_write.values() for job in jobs]
    if workers is not None:
        workers.run_each(jobs, write_part)
        return
    total = sum(jobs[0].source_documents for jobs in to_write.values())
    done = 0

    def count(documents: int) -> None:
        nonlocal done
        done += documents
        progress(done, total)

    for job in jobs:
        write_part(job, count)


def _identity(data: TextData) -> Identity:
    return Identity(
        dataset=data.tfds_name,
        label=data.label(),
        vocabulary=os.path.basename(data.vocabulary),
        vocabulary_fingerprint=vocabulary_fingerprint(data.vocabulary),
        vocabulary_size=vocabularies.load(data.vocabulary).vocab_size,
        unknown_id=vocabularies.unknown_id(data.vocabulary),
        documents_per_group=preprocessors.DOCUMENTS_PER_GROUP,
    )


def _check_output(
    output: str, existing: Manifest | None, identity: Identity, splits: set[str]
) -> None:
    """Raise UserError if the output contains anything other than blocks of this text.

    Other content must be neither overwritten nor mixed with these blocks. In a bucket, only an
    existing manifest is compared.
    """
    if existing is not None and existing.identity != identity:
        now, then = dataclasses.asdict(identity), dataclasses.asdict(existing.identity)
        changed = [name for name in now if now[name] != then[name]]
        raise UserError(
            f"{output} contains other blocks: their {changed[0]} is {then[changed[0]]}, not "
            f"{now[changed[0]]}\nChoose a new directory: --output=DIR"
        )
    if "://" in output or not os.path.exists(output):
        return
    if not os.path.isdir(output):
        raise UserError(f"{output} is not a directory\nChoose a directory: --output=DIR")
    strange = sorted(set(os.listdir(output)) - splits - {manifests.FILE_NAME})
    if strange:
        raise UserError(
            f"{output} contains {strange[0]}, which `fire-lm corpus blocks` did not write\n"
            "Choose a new or empty directory: --output=DIR"
        )


def _finished(job: PartToWrite) -> Part | None:
    record = manifests.read_json(stores.join(job.path, _PART_FILE))
    if record is None:
        return None
    part = record.pop("part")
    if record != job.facts():
        raise UserError(
            f"{job.path} was written from different text, with a different vocabulary, or by "
            "another version of fire_lm\n"
            "Choose a new directory (--output=DIR), or remove that folder"
        )
    return Part(**part)


def _write_arrays(job: PartToWrite, progress: Callable[[int], None]) -> Part:
    dtypes = {TOKENS: (job.identity.token_dtype, False), **LAYOUT}
    shard = seqio.ShardInfo(job.index, job.count) if job.count > 1 else None
    documents = skipped = tokens = unknown = text_bytes = 0
    digest = hashlib.sha256()
    try:
        arrays = {
            name: stores.ArrayWriter(stores.join(job.path, name), dtype, compress=compress)
            for name, (dtype, compress) in dtypes.items()
        }
        with reading(job.data):
            groups = tasks.documents(job.data, split=job.split, shard=shard)
            for group in groups.as_numpy_iterator():
                # Skipped documents have no tokens.
                lengths = np.pad(group["lengths"], (0, int(group["skipped"]))).astype(np.int64)
                ids = stored(group["targets"], job.identity, f"{job.data.title} ({job.split})")
                digest.update(ids.tobytes())
                arrays[TOKENS].append(ids)
                arrays[BYTE_COUNTS].append(group["byte_counts"])
                arrays[ENDS].append(tokens + np.cumsum(lengths))
                documents += len(lengths)
                skipped += int(group["skipped"])
                tokens += int(lengths.sum())
                unknown += int(np.sum(ids == job.identity.unknown_id))
                text_bytes += int(group["byte_counts"].sum(dtype=np.int64))
                progress(len(lengths))
        for array in arrays.values():
            array.close()
    except (ValueError, OSError, TimeoutError) as error:
        raise RunFailed(f"Writing {job.path} failed: {stores.brief(error)}") from error
    return Part(documents, skipped, tokens, unknown, text_bytes, digest.hexdigest())


def stored(ids: np.ndarray, identity: Identity, where: str) -> np.ndarray:
    """Return token ids in the data type of the blocks.

    Raises:
      RunFailed: The vocabulary has no such id. The message begins with `where`.
    """
    least, most = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    if least < 0 or most >= identity.vocabulary_size:
        raise RunFailed(
            f"{where} contains the token id {least if least < 0 else most}, but the vocabulary "
            f"{identity.vocabulary} has only the ids 0 to {identity.vocabulary_size - 1}, so its "
            "files contradict each other: use another vocabulary"
        )
    return ids.astype(identity.token_dtype)


def _whole_split(jobs: Sequence[PartToWrite]) -> list[Part]:
    """Return the written parts of a split after checking that they contain all its documents."""
    whole = [part for part in map(_finished, jobs) if part is not None]
    first, documents = jobs[0], sum(part.documents for part in whole)
    if len(whole) < len(jobs):
        raise RunFailed(
            f"Only {len(whole)} of the {len(jobs)} parts of the {first.split} split were written\n"
            "Rerun the same command to write the rest"
        )
    if first.source_documents not in (0, documents):
        folder = stores.join(first.output, first.split)
        raise RunFailed(
            f"{folder} contains {documents:,} documents, but the data set has "
            f"{first.source_documents:,}\nRemove that directory and rerun the same command"
        )
    return whole
