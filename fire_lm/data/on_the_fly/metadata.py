"""The TFDS data sets of a directory: their names, their metadata and the features of their text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from etils import epath
from google.protobuf import json_format

from fire_lm.data.quiet_tensorflow import tf, tfds, without_their_warnings
from fire_lm.data.spec import DataSet
from fire_lm.errors import FireLMError, RunFailed, UserError, reason
from fire_lm.storage import children, place

VERSION = re.compile(r"\d+\.\d+\.\d+")

# The exceptions that TFDS raises for metadata that it cannot read or parse.
_METADATA_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    json_format.Error,
    tf.errors.OpError,
    OSError,
)


def splits(data: DataSet) -> list[str]:
    """Return the names of a data set's splits, starting with the training split."""
    return sorted(dataset_info(data).splits, key=lambda split: (split != "train", split))


def data_sets(data_dir: str) -> list[str]:
    """Return the TFDS names of the data sets in a data directory.

    The list is empty if the directory does not exist or cannot be listed.

    Raises:
      UserError: The path has an unsupported scheme.
    """
    top = place(data_dir)
    try:
        folders = [folder.relative_to(top) for folder in _versions(top)]
    except OSError:
        return []
    return sorted(f"{folder.parent.as_posix()}:{folder.name}" for folder in folders)


def _versions(folder: epath.Path, depth: int = 0) -> Iterator[epath.Path]:
    """Yield all folders of the form name/version or name/config/version.

    The search does not descend into these folders, because they contain many files.
    """
    inside = children(folder) if depth < 4 else []
    if depth > 1 and any(path.name == "dataset_info.json" for path in inside):
        yield folder
        return
    for path in inside:
        # Files have a suffix, but so do some configs, such as that of c4/en.noclean.
        config = depth == 1 and path.suffix and path.is_dir()
        if config or not path.suffix or VERSION.fullmatch(path.name):
            yield from _versions(path, depth + 1)


def dataset_info(data: DataSet) -> tfds.core.DatasetInfo:
    """Return the metadata of a data set.

    Raises:
      UserError: The data set does not exist.
      RunFailed: The metadata cannot be read.
    """
    try:
        with without_their_warnings():
            info = tfds.builder(data.tfds_name, data_dir=data.data_dir).info
    except tfds.core.registered.DatasetNotFoundError as error:
        raise _no_data_set(data) from error
    except _METADATA_ERRORS as error:
        raise _no_data_set(data, reason(error)) from error
    if not info.splits or info.features is None:
        raise _no_data_set(data)
    if ":" not in data.tfds_name:  # seqio reads only a version that is named
        raise _no_data_set(data, "the name has no version")
    return info


def _no_data_set(data: DataSet, problem: str = "") -> FireLMError:
    """Return the error for a data set that cannot be opened.

    `problem` is the reason that TFDS reports.
    """
    names, because = data_sets(data.data_dir), f"\n({problem})" if problem else ""
    if data.tfds_name in names:
        return RunFailed(
            f"The metadata of {data.tfds_name} in the directory {data.data_dir} is damaged or "
            f"cannot be read{because}"
        )
    message = f"No data set {data.tfds_name} in the directory {data.data_dir}"
    if names:
        message += (
            f"\nThe directory contains {', '.join(names)}: set --tfds_name=NAME "
            "(pretrain and sweep: --gin.TextData.tfds_name=NAME)"
        )
    elif data.tfds_name == DataSet.tfds_name:
        if "://" not in data.data_dir:  # the embedded text is written to local directories only
            message += (
                f"\n`fire-lm corpus --data_dir={data.data_dir}` writes the embedded text there"
            )
    elif "/" not in (name := data.tfds_name.partition(":")[0]):
        message += (
            f"\n`fire-lm corpus --data_dir={data.data_dir} --name={name} --from=FILES` writes it"
        )
    return UserError(message + because)


def text_features(data: DataSet) -> tuple[str, ...]:
    """Return the features of a data set that contain text; a task's data set has two.

    Raises:
      UserError: The data set does not exist.
      RunFailed: The metadata cannot be read.
    """
    pair = ("inputs", "targets")
    features = dataset_info(data).features
    return pair if "text" not in features and all(name in features for name in pair) else ("text",)


def check_data_set(data: DataSet, split: str, features: tuple[str, ...] = ("text",)) -> int:
    """Check that a split exists and that its features are strings in TFRecord files.

    Returns:
      The number of documents in the split.

    Raises:
      UserError: One of them is missing or unsuitable.
      RunFailed: The metadata cannot be read.
    """
    info, where = dataset_info(data), data.where
    if split not in info.splits:
        raise UserError(f"{where} has no split {split!r}, only {', '.join(sorted(info.splits))}")
    for name in features:
        if name not in info.features:
            raise UserError(
                f"{where} has no feature {name!r}, only {', '.join(sorted(info.features))}"
            )
        if not _is_string(info.features[name]):
            kind = " ".join(str(info.features[name]).split())
            raise UserError(
                f"The feature {name!r} of {where} is not a single string, but {kind}\n"
                "Write the texts to a .jsonl file and convert it: `fire-lm corpus --from=FILE`"
            )
    # TFRecord is the only format that tf.data can read by itself.
    if info.file_format is not tfds.core.FileFormat.TFRECORD:
        raise UserError(
            f"{where} consists of {info.file_format.value} files, not TFRecord files\n"
            "Convert it: `tfds convert_format --out_file_format=tfrecord`"
        )
    return info.splits[split].num_examples


def _is_string(feature: tfds.features.FeatureConnector) -> bool:
    """Return whether a feature is a single string per document, not a list, tree or data set."""
    single = isinstance(feature, tfds.features.Text | tfds.features.Tensor)
    return single and feature.shape == () and feature.tf_dtype == tf.string
