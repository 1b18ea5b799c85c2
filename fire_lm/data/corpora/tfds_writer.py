"""Writing of texts as a TFDS data set, in this process or on Apache Beam workers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from fire_lm.data.quiet_tensorflow import tf, tfds, without_their_warnings
from fire_lm.errors import UserError, first_line
from fire_lm.storage import in_bucket, literal

# A data set has at least _FILES files in each split, unless it has fewer documents, because the
# order of the files, which depends on the seed, determines which text a short run reads, and
# because each process reads its own files. Larger data sets have files of about _FILE_BYTES, but
# never more files than C4.
_FILES, _FILE_BYTES, _MOST_FILES = 32, 2**27, 1024
_ABANDONED_AFTER = 24 * 3600  # seconds without a change

# A key that is unique within the split, and a text or a list of texts for each field.
Example = tuple[str, Mapping[str, Any]]
# A function that returns the examples of a split or, for Beam, a transform that produces them.
Examples = Callable[[], Iterable[Example] | Any]

# The builder is not registered, because TFDS has its own C4, and because reading needs only the
# written files.
with tfds.core.registered.skip_registration():

    class _Texts(tfds.core.GeneratorBasedBuilder):
        """A builder for examples that consist of texts and lists of texts.

        A subclass defines the name and the version of the data set.
        """

        VERSION = tfds.core.Version("0.0.0")

        def __init__(
            self,
            fields: Mapping[str, tfds.features.FeatureConnector],
            splits: Mapping[str, Examples],
            metadata: Mapping[str, Any] | None,
            **kwargs,
        ):
            self._fields, self._splits, self._metadata = fields, splits, metadata
            super().__init__(**kwargs)

        @property
        def data_path(self) -> epath.Path:
            """The folder of the data set, whose name TFDS would otherwise take as a pattern."""
            return literal(self.data_dir)

        def _info(self) -> tfds.core.DatasetInfo:
            metadata = self._metadata
            return tfds.core.DatasetInfo(
                builder=self,
                description="Documents written by fire_lm.",
                features=tfds.features.FeaturesDict(dict(self._fields)),
                metadata=None if metadata is None else tfds.core.MetadataDict(metadata),
            )

        def _split_generators(self, dl_manager):
            return {split: self._generate_examples(split) for split in self._splits}

        def _generate_examples(self, split: str):
            return self._splits[split]()


class _Shards(tfds.core.utils.shard_utils.ShardConfig):
    """A number of files for each split, or as many as it has examples if these are fewer."""

    def get_number_shards(self, total_size: int, num_examples: int, *args, **kwargs) -> int:
        return min(self.num_shards, num_examples)


class _Settings(tfds.download.DownloadConfig):
    def get_shard_config(self) -> _Shards:
        return _Shards(num_shards=self.num_shards)


def write_dataset(
    data_dir: str | os.PathLike,
    name: str,
    version: str,
    fields: Sequence[str],
    splits: Mapping[str, Examples],
    *,
    files: int,
    config: str | None = None,
    beam_options: Any = None,
    lists: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a data set to DATA_DIR/NAME[/CONFIG]/VERSION atomically.

    The directory appears only when all splits are complete. TFDS orders the examples of a split by
    a hash of their keys.

    Args:
      fields: The names of the text fields.
      splits: A mapping from each split's name to a function that returns the split's examples.
      files: The number of files in each split; fewer if the split has fewer examples.
      beam_options: `PipelineOptions`, needed if the functions in `splits` return Beam transforms.
      lists: The names of the fields that contain lists of texts.
      metadata: The content of metadata.json, which appears together with the splits.

    Raises:
      UserError: The data set cannot be written.
    """
    members: dict[str, Any] = {"name": name, "VERSION": tfds.core.Version(version)}
    if config is not None:
        members["BUILDER_CONFIGS"] = [tfds.core.BuilderConfig(name=config)]
    tfds.disable_progress_bar()
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_their_warnings())
        # TFDS reports downloads and creates a folder for downloads, although there are none.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        unused = stack.enter_context(tempfile.TemporaryDirectory())
        with tfds.core.registered.skip_registration():
            builder_class = type(name, (_Texts,), {"__module__": __name__, **members})
        connectors = {field: tfds.features.Text() for field in fields}
        connectors |= {field: tfds.features.Sequence(tfds.features.Text()) for field in lists}
        builder = builder_class(
            connectors, splits, metadata, data_dir=os.fspath(data_dir), config=config
        )
        settings = _Settings(try_download_gcs=False, num_shards=files, beam_options=beam_options)
        try:
            _remove_leftovers(builder.data_path)
            builder.download_and_prepare(download_dir=unused, download_config=settings)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            raise UserError(f"Cannot write {name} in {data_dir}: {reason}") from error


def _remove_leftovers(target: epath.Path) -> None:
    """Remove what killed writers of the data set `target` left beside it a day or more ago.

    TFDS writes to a folder `incomplete.*_VERSION` and renames it at the end. A writer on another
    host may be alive, so what has changed since then stays. In buckets, nothing is removed.
    """
    if in_bucket(target) or not target.parent.is_dir():
        return
    for path in target.parent.glob(f"incomplete.*_{target.name}"):
        with contextlib.suppress(OSError):  # another writer has just renamed its folder
            newest = max(place.stat().mtime for place in (path, *path.glob("*")))
            if time.time() - newest > _ABANDONED_AFTER:
                shutil.rmtree(path, ignore_errors=True)


def number_of_files(size: int) -> int:
    """Return the number of files in each split of a data set with `size` bytes of text."""
    return min(max(_FILES, size // _FILE_BYTES), _MOST_FILES)


def record_of(target: epath.Path, file: str) -> dict[str, Any] | None:
    """Return what a writer recorded in a JSON file of a data set, so that it is written only once.

    The result is {} if there is no such file or it is damaged, and None if there is no such data
    set: its folder, `target`, appears only when it is complete.
    """
    if not target.exists():
        return None
    try:
        record = json.loads((target / file).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
