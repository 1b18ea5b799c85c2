"""One's own documents (arXiv, GitHub, anything) as a TFDS data set.

A document's split is decided by a hash of its text, so it depends neither on order nor on how the
documents are divided into files, and a text that occurs twice cannot be in both splits: exact
duplicates are left out and counted. TFDS orders the documents of a split by another hash.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping

from etils import epath

from fire_lm.data.corpus import MANIFEST
from fire_lm.data.quiet_tensorflow import tf, tfds, without_their_warnings
from fire_lm.data.text import LONGEST_DOCUMENT
from fire_lm.data.text_files import Document, OnBytes, list_files, read_documents
from fire_lm.errors import UserError

VERSION = "1.0.0"
# The documents of a split.
Documents = Callable[[str], Iterator[Document]]

# The seed's order of files decides what a short run reads, and processes each get files of their
# own: so as many files as that, then as many as keep them at the bytes, and never more than C4 has.
_FILES, _FILE_BYTES, _MOST_FILES = 32, 2**27, 1024


@dataclasses.dataclass(frozen=True)
class TextCorpus:
    """What was written.

    Attributes:
        tfds_name: for `TextData.tfds_name`.
        documents, bytes: by split.
        left_out: documents by reason.
        written: False if the data set was there, from the same files.
    """

    tfds_name: str
    documents: dict[str, int]
    bytes: dict[str, int]
    left_out: dict[str, int]
    written: bool


def split_of(digest: bytes, validation_percent: float) -> str:
    """'train' or 'validation', by the SHA-256 of the text alone."""
    fraction = int.from_bytes(digest[:8]) / 2**64
    return "validation" if 100 * fraction < validation_percent else "train"


def write_text_corpus(
    source: str,
    data_dir: str,
    name: str,
    *,
    text_field: str | None = "text",
    validation_percent: float = 6,
    on_bytes: OnBytes = lambda done, total: None,
) -> TextCorpus:
    """Writes DATA_DIR/NAME/1.0.0; does nothing if it is there from the same files.

    The documents are read once to count them and once for each split. To find duplicates, a hash
    of each is held during a pass: 110 bytes of memory, measured on 200,000 documents. TFDS holds
    up to 1 GB of them besides, to shuffle.

    Args:
        source, text_field, on_bytes: see `read_documents`.
        data_dir: TFDS data directory, local or gs://; may hold other data sets.
        name: of the data set, in lower case.
        validation_percent: 0 leaves out that split.

    Raises:
        UserError: the name is taken or unfit, or a split would be empty. Also what
            `read_documents` raises.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in tfds.list_builders(
        with_community_datasets=False
    ):
        raise UserError(
            f"--name {name} cannot be used: choose lower-case letters, digits and _, and not the "
            "name of a data set that TFDS has"
        )
    if not 0 <= validation_percent < 100:
        raise UserError(f"--validation_percent is {validation_percent}: from 0 to below 100")
    if (epath.Path(data_dir) / MANIFEST).exists():
        raise UserError(f"{data_dir} holds the embedded text: name another --data_dir")
    settings = {
        "name": name,
        "text_field": text_field,
        "validation_percent": validation_percent,
        "files": [[path, size] for path, _, size in list_files(source)],
    }
    target = epath.Path(data_dir) / name / VERSION
    if (held := _held(target, settings)) is not None:
        return held
    splits = ("train", "validation") if validation_percent else ("train",)
    finished = 0

    def read() -> Iterator[Document]:
        passes, before = 1 + len(splits), finished
        return read_documents(
            source, text_field, lambda done, total: on_bytes(done + before * total, passes * total)
        )

    counted = Selection(splits, validation_percent)
    collections.deque(counted.choose(read()), maxlen=0)
    counted.check()
    sha256 = counted.sha256()

    def documents(split: str) -> Iterator[Document]:
        nonlocal finished
        finished += 1
        return Selection(splits, validation_percent).choose(read(), split)

    files = max(_FILES, sum(counted.bytes.values()) // _FILE_BYTES)
    files = min(files, _MOST_FILES, *counted.documents.values())
    _write_dataset(data_dir, name, {split: documents for split in splits}, files)
    manifest = settings | {
        "documents": counted.documents,
        "bytes": counted.bytes,
        "left_out": counted.left_out,
        "sha256": sha256,
    }
    (target / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return _summary(manifest, written=True)


class Selection:
    """Divides documents into splits and counts them."""

    def __init__(self, splits: tuple[str, ...], validation_percent: float):
        self.documents = dict.fromkeys(splits, 0)
        self.bytes = dict.fromkeys(splits, 0)
        self.left_out: dict[str, int] = {}
        self._percent = validation_percent
        self._digests: dict[str, set[bytes]] = {split: set() for split in splits}

    def choose(self, documents: Iterator[Document], chosen: str = "") -> Iterator[Document]:
        """Those of the split `chosen`; counts all."""
        for place, text in documents:
            digest = hashlib.sha256(text).digest()
            split = split_of(digest, self._percent)
            problem = unfit(text)
            if problem is None and digest[:16] in self._digests[split]:
                problem = "duplicate"
            if problem is not None:
                self.left_out[problem] = self.left_out.get(problem, 0) + 1
                continue
            self._digests[split].add(digest[:16])
            self.documents[split] += 1
            self.bytes[split] += len(text)
            if split == chosen:
                yield place, text

    def check(self) -> None:
        """Raises UserError if a split is empty."""
        for split, count in self.documents.items():
            if not count:
                told = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
                raise UserError(
                    f"No document is left for the split {split!r} of "
                    f"{sum(self.documents.values())} (left out: {told or 'none'})\n"
                    "give more text, or another --validation_percent"
                )

    def sha256(self) -> dict[str, str]:
        """Of each split's text, whatever its order; gives up what finds duplicates."""
        hashes = {split: hashlib.sha256() for split in self._digests}
        for split, whole in hashes.items():
            for digest in sorted(self._digests.pop(split)):
                whole.update(digest)
        return {split: whole.hexdigest() for split, whole in hashes.items()}


def unfit(text: bytes) -> str | None:
    """Why a document is left out, in a word; None if it is not."""
    if not text.strip():
        return "empty"
    if len(text) > LONGEST_DOCUMENT:
        return "huge"
    try:
        text.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return None


def _held(target: epath.Path, settings: dict) -> TextCorpus | None:
    """What is there from the same files, None if nothing is.

    Raises:
        UserError: it is something else, or unfinished.
    """
    if not target.exists():
        return None
    try:
        manifest = json.loads((target / MANIFEST).read_text())
        if all(manifest[key] == value for key, value in settings.items()):
            return _summary(manifest, written=False)
        problem = "was written from other files or settings"
    except (OSError, ValueError, KeyError, TypeError):
        problem = f"has no whole {MANIFEST}"
    raise UserError(f"{target} {problem}: choose another --name, or remove that folder")


def _summary(manifest: dict, written: bool) -> TextCorpus:
    return TextCorpus(
        tfds_name=f"{manifest['name']}:{VERSION}",
        documents=manifest["documents"],
        bytes=manifest["bytes"],
        left_out=manifest["left_out"],
        written=written,
    )


class _Documents(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """Texts and where they were read."""

    VERSION = tfds.core.Version(VERSION)

    def __init__(self, splits: Mapping[str, Documents], **kwargs):
        self._splits = splits
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text()
        features = tfds.features.FeaturesDict({"text": text, "source": text})
        return tfds.core.DatasetInfo(
            builder=self, description="Documents written by fire_lm.", features=features
        )

    def _split_generators(self, dl_manager):
        return {split: self._examples(split) for split in self._splits}

    def _generate_examples(self, **kwargs):
        raise NotImplementedError("_split_generators hands out the examples")

    def _examples(self, split: str) -> Iterator[tuple[str, dict]]:
        for source, text in self._splits[split](split):
            yield source, {"text": text, "source": source}


def _write_dataset(data_dir: str, name: str, splits: Mapping[str, Documents], files: int) -> None:
    """TFDS writes beside the target and renames at the end: all splits appear, or none."""
    tfds.disable_progress_bar()
    download = tfds.download.DownloadConfig(try_download_gcs=False, num_shards=files)
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_their_warnings())
        # TFDS prints about downloads, of which there are none, and makes a folder for them.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        unused = stack.enter_context(tempfile.TemporaryDirectory())
        with tfds.core.registered.skip_registration():
            builder_class = type(name, (_Documents,), {"name": name, "__module__": __name__})
        try:
            builder = builder_class(splits, data_dir=data_dir)
            builder.download_and_prepare(download_dir=unused, download_config=download)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise UserError(f"Cannot write {name} in {data_dir}: {reason}") from error
