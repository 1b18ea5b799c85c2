"""Writes documents as a TFDS data set that reads back exactly as C4 does."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping

from fire_lm.data.quiet_tensorflow import tfds, without_their_warnings

# Many small files: the seed's order of files decides what a short run reads, and several
# processes each get files of their own.
_MAX_FILES_PER_SPLIT = 32


class _Config(tfds.core.BuilderConfig):
    pass


# Not registered: TFDS has a C4 of its own, and reading needs only the written files.
with tfds.core.registered.skip_registration():

    class C4(tfds.core.GeneratorBasedBuilder):
        """C4's name, version and features over given documents; TFDS orders them by key hash."""

        VERSION = tfds.core.Version("3.1.0")
        BUILDER_CONFIGS = [_Config(name="en", description="Documents written by fire_lm.")]

        def __init__(self, splits: Mapping[str, Mapping[str, bytes]], **kwargs):
            self._documents = splits
            super().__init__(**kwargs)

        def _info(self) -> tfds.core.DatasetInfo:
            names = ("text", "url", "content-type", "content-length", "timestamp")
            features = tfds.features.FeaturesDict({name: tfds.features.Text() for name in names})
            return tfds.core.DatasetInfo(
                builder=self, description="Documents written by fire_lm.", features=features
            )

        def _split_generators(self, dl_manager):
            return {split: self._examples(texts) for split, texts in self._documents.items()}

        def _generate_examples(self, **kwargs):
            raise NotImplementedError("_split_generators hands out the examples")

        def _examples(self, texts: Mapping[str, bytes]) -> Iterator[tuple[str, dict]]:
            for path, content in texts.items():
                yield (
                    path,
                    {
                        "text": content,
                        "url": path,
                        "content-type": "text/plain",
                        "content-length": str(len(content)),
                        "timestamp": "1970-01-01T00:00:00Z",
                    },
                )


def write(data_dir: str | os.PathLike, splits: Mapping[str, Mapping[str, bytes]]) -> None:
    """Writes `c4/en/3.1.0` below `data_dir`.

    Args:
        data_dir: a TFDS data dir; made if missing.
        splits: document by path, by split; no split may be empty.
    """
    files = min(_MAX_FILES_PER_SPLIT, *(len(texts) for texts in splits.values()))
    tfds.disable_progress_bar()
    download = tfds.download.DownloadConfig(num_shards=files, try_download_gcs=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_their_warnings())
        # TFDS prints about downloads, of which there are none, and makes a folder for them.
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        unused = stack.enter_context(tempfile.TemporaryDirectory())
        builder = C4(splits, data_dir=os.fspath(data_dir), config="en")
        builder.download_and_prepare(download_dir=unused, download_config=download)
