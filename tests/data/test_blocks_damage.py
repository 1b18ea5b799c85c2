"""Blocks on disk that are damaged or belong to another version or vocabulary are errors."""

import pytest
from sample_blocks import all_rows, blocks, data_dir, whole
from sample_vocabulary import MODEL

from fire_lm.data import (
    Blocks,
    train_iterator,
    unknown_warning,
)
from fire_lm.data.blocks import manifest as manifests
from fire_lm.errors import RunFailed, UserError
from fire_lm.training.start import check_vocabulary

__all__ = ["blocks", "data_dir", "whole"]  # fixtures


FILES = (
    "manifest.json",
    *(f"train/00000-of-00001/{array}/c/0" for array in ("tokens", "ends", "byte_counts")),
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.37, 0.999])
def test_a_flipped_bit_is_an_error(blocks, name, place):
    content = bytearray((blocks / name).read_bytes())
    # The first bytes of manifest.json are a brace and white space; JSON ignores the latter.
    content[int(place * len(content))] ^= 1
    (blocks / name).write_bytes(content)
    with pytest.raises((RunFailed, UserError), match="damaged|failed"):
        all_rows(blocks)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_an_error(blocks, name):
    content = (blocks / name).read_bytes()
    for kept in (len(content) - 1, len(content) // 2, 0):
        (blocks / name).write_bytes(content[:kept])
        with pytest.raises(RunFailed, match="damaged|failed"):
            all_rows(blocks)
    (blocks / name).unlink()
    with pytest.raises((RunFailed, UserError), match="no complete blocks in|failed"):
        all_rows(blocks)


def test_a_manifest_of_another_shape_is_an_error(blocks):
    for content in (b"[1]", b"[]", b"3", b"null", b'"text"', b"{}"):
        (blocks / "manifest.json").write_bytes(content)
        with pytest.raises(RunFailed, match="damaged"):
            all_rows(blocks)


def test_the_undamaged_copy_reads(blocks):
    assert all_rows(blocks).any()


def test_what_zarr_says_of_an_array_is_not_trusted(blocks):
    """The manifest has the dtype, so zarr.json is not read and its damage does no harm."""
    for path in blocks.rglob("zarr.json"):
        path.write_text(path.read_text().replace("uint16", "uint32"))
    assert all_rows(blocks).any()


def test_blocks_of_another_version_are_refused(blocks):
    path = str(blocks / "manifest.json")
    content = manifests.read_json(path)
    assert content is not None
    for name, value in (("format", 0), ("preprocessing", "lower case")):
        identity = {**content["identity"], name: value}
        manifests.write_json(path, {**content, "identity": identity})
        with pytest.raises(UserError, match=f"have {name} .*\n.*corpus blocks"):
            all_rows(blocks)


def test_another_vocabulary_is_refused(blocks, tmp_path):
    def open_with(vocabulary: str) -> None:
        train_iterator(Blocks(str(blocks), vocabulary), length=16, batch_size=1, seed=0)

    open_with("bytes"), open_with("")
    with pytest.raises(UserError, match="made with the vocabulary bytes, not with .*model"):
        open_with(MODEL)
    with pytest.raises(UserError, match="Vocabulary file not found: nowhere.model"):
        open_with("nowhere.model")


def test_messages_name_the_vocabulary_of_blocks(blocks):
    """The vocabulary's name is in the blocks, so a machine needs no copy of the vocabulary."""
    for vocabulary in ("", "bytes"):
        data = Blocks(str(blocks), vocabulary)
        with pytest.raises(UserError, match="^vocabulary 'bytes' has 259 ids, but the model"):
            check_vocabulary(data, 100)
        assert "unknown to the vocabulary bytes:" in unknown_warning(0.5, "train", data)
