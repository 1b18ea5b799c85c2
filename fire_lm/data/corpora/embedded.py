"""The embedded corpus: text that exists on every machine with this package, as a TFDS data set.

The corpus consists of the sources of Python's standard library (without tests), the `pydoc` topics
and the sources of the installed JAX. It has the schema and the name of C4, so that the same code
can read both corpora. The text is code rather than web text, and depends on the versions of Python
and JAX, which the manifest records. Results call the corpus `embedded`, never C4.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

from fire_lm.data.corpora.text_selection import unfit
from fire_lm.data.spec import EMBEDDED_MANIFEST as MANIFEST
from fire_lm.data.spec import EMBEDDED_VERSION
from fire_lm.errors import UserError

NAME = "embedded"
TFDS_NAME = f"c4/en:{EMBEDDED_VERSION}"
_TFDS_PATH = pathlib.Path("c4", "en", EMBEDDED_VERSION)

_MIN_BYTES = 200
_MAX_BYTES = 400_000
_VALIDATION_PERCENT = 6
_LEFT_OUT_FOLDERS = {
    "__pycache__", "dist-packages", "idle_test", "pydoc_data", "site-packages", "test", "tests",
}  # fmt: skip
_ABANDONED_AFTER = 3600  # seconds

# A path that is identical on every machine, and the content of the document.
Document = tuple[str, bytes]


@dataclasses.dataclass(frozen=True)
class CorpusSummary:
    """The contents of a corpus directory.

    Attributes:
      documents: The number of documents in each split, 'train' and 'validation'.
      bytes: The size of each split's text.
      skipped: The number of documents that were skipped because they are smaller than 200 bytes,
        larger than 400 kB or not UTF-8.
      written: False if the directory already contained exactly this text.
    """

    documents: dict[str, int]
    bytes: dict[str, int]
    skipped: int
    written: bool


def embedded_documents() -> Iterator[Document]:
    """Yield the standard library's sources, the pydoc topics and JAX's sources."""
    yield from _sources("python", pathlib.Path(sysconfig.get_paths()["stdlib"]))
    from pydoc_data import topics

    for name, text in sorted(topics.topics.items()):
        yield f"pydoc_data/topics/{name}", text.encode()
    import jax

    yield from _sources("jax", pathlib.Path(jax.__file__).parent)


def _sources(name: str, root: pathlib.Path) -> Iterator[Document]:
    for folder, folders, files in os.walk(root):
        # config-* and _sysconfigdata* contain machine-specific paths and flags.
        folders[:] = sorted(
            f for f in folders if f not in _LEFT_OUT_FOLDERS and not f.startswith("config-")
        )
        for file in sorted(files):
            path = pathlib.Path(folder, file)
            if file.endswith(".py") and not file.startswith("_sysconfig") and path.is_file():
                yield f"{name}/{path.relative_to(root).as_posix()}", path.read_bytes()


def write_corpus(
    data_dir: str, documents: Iterable[Document], progress: Callable[[str], None]
) -> CorpusSummary:
    """Write documents such as the embedded ones to a TFDS data directory, unless they are there.

    Args:
      data_dir: A local directory that does not exist, is empty, or was written by this function.
      progress: A callback that receives one-line messages.

    Raises:
      UserError: The directory contains other files, cannot be written, or is in a bucket.
    """
    if "://" in data_dir:
        raise UserError(
            f"The corpus is written to a local directory, not to {data_dir}\n"
            "Write it locally and copy the whole directory to the bucket"
        )
    target = pathlib.Path(data_dir)
    written = _check_target(target)
    progress("Collecting the text")
    by_split, entries, skipped = _select(documents)
    summary = CorpusSummary(
        documents={split: len(texts) for split, texts in by_split.items()},
        bytes={split: sum(map(len, texts.values())) for split, texts in by_split.items()},
        skipped=skipped,
        written=True,
    )
    if (
        written is not None
        and written["documents"] == entries
        and _files_of(target) == written["files"]
    ):
        progress(f"{target} already contains this text: nothing to do")
        return dataclasses.replace(summary, written=False)
    if not all(by_split.values()):
        raise UserError(
            "There are too few documents: the train and validation splits each need at least one"
        )
    if written is not None:
        _check_alone(target)
        progress(f"{target} was written from other sources or is incomplete: writing it again")
    manifest = {
        "name": NAME,
        "python": platform.python_version(),
        "jax": metadata.version("jax"),
        "tfds_name": TFDS_NAME,
        "skipped": skipped,
        "documents": entries,
    }
    total = sum(summary.documents.values())
    progress(f"Writing {total} documents, {sum(summary.bytes.values()) / 1e6:.1f} MB")
    try:
        _write(target, by_split, manifest)
    except OSError as error:
        raise UserError(f"Cannot write {target}: {error.strerror or error}") from error
    return summary


def _check_target(target: pathlib.Path) -> dict | None:
    """Return the manifest of an existing corpus, or None if the directory is new or empty.

    Raises:
      UserError: The directory cannot be read, or `write_corpus` did not write its content.
    """
    try:
        names = {path.name for path in target.iterdir()} if target.exists() else set()
    except OSError as error:
        raise UserError(f"{target} is not a readable directory: {error.strerror}") from error
    if not names:
        return None
    strange = sorted(names - {MANIFEST, "c4"})
    if MANIFEST not in names or strange:
        raise _not_ours(target, strange[0] if strange else "c4")
    try:
        manifest = json.loads((target / MANIFEST).read_text())
        if manifest["name"] == NAME and {"documents", "files"} <= manifest.keys():
            return manifest
    except (ValueError, KeyError, TypeError, OSError):
        pass
    raise UserError(
        f"{target / MANIFEST} is not a manifest of `fire-lm corpus`\n"
        "Choose a new or empty directory: --data_dir=DIR"
    )


def _check_alone(target: pathlib.Path) -> None:
    """Raise UserError if `target` has other data sets below `c4`, which a rewrite would delete."""
    for own in (_TFDS_PATH.parent, _TFDS_PATH):
        folder = target / own.parent
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name not in (own.name, ".config"):  # TFDS writes .config
                raise _not_ours(target, path.relative_to(target).as_posix())


def _not_ours(target: pathlib.Path, name: str) -> UserError:
    return UserError(
        f"{target} contains {name}, which `fire-lm corpus` did not write\n"
        "Choose a new or empty directory: --data_dir=DIR"
    )


def split_of(path: str) -> str:
    """Return the split of a document, which depends only on a hash of the document's path."""
    bucket = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8]) % 100
    return "validation" if bucket < _VALIDATION_PERCENT else "train"


def _select(documents: Iterable[Document]) -> tuple[dict[str, dict[str, bytes]], list, int]:
    by_split: dict[str, dict[str, bytes]] = {"train": {}, "validation": {}}
    entries, skipped = [], 0
    for path, content in documents:
        if not (_MIN_BYTES <= len(content) <= _MAX_BYTES and unfit(content) != "not UTF-8"):
            skipped += 1
            continue
        split = split_of(path)
        by_split[split][path] = content
        digest = hashlib.sha256(content).hexdigest()
        entries.append({"path": path, "split": split, "size": len(content), "sha256": digest})
    return by_split, sorted(entries, key=lambda entry: entry["path"]), skipped


def _write(target: pathlib.Path, by_split: dict[str, dict[str, bytes]], manifest: dict) -> None:
    """Write the corpus to a directory next to `target`, then rename that directory to `target`.

    An incomplete corpus therefore never appears in `target`.
    """
    from fire_lm.data.corpora import c4_writer

    target = target.resolve()  # a rename would replace a link to a folder on another disk
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.fire_lm_partial-"
    for path in target.parent.iterdir():  # left behind by a killed process
        if path.name.startswith(prefix) and time.time() - path.stat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=prefix, dir=target.parent, ignore_cleanup_errors=True
    ) as partial:
        new = pathlib.Path(partial, "new")
        c4_writer.write(new, by_split)
        manifest = {**manifest, "files": _files_of(new)}
        (new / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
        if target.exists():
            target.rename(pathlib.Path(partial, "old"))
        new.rename(target)


def _files_of(data_dir: pathlib.Path) -> dict[str, int]:
    """Return the size in bytes of each of the data set's files, keyed by name."""
    folder = data_dir / _TFDS_PATH
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*"))}
