"""Slices by name: chips, shapes, and names that are refused."""

import math
import re

import pytest

from fire_lm.errors import UserError
from fire_lm.hardware.slices import CHIPS, parse_slice


@pytest.mark.parametrize(
    "text, name, chips, shape",
    [
        ("v4-8", "v4-8", 4, (2, 2, 1)),
        ("v4-256", "v4-256", 128, (4, 4, 8)),
        ("v4:256", "v4-512", 256, (4, 8, 8)),
        ("2xv4-128", "2xv4-128", 128, (4, 4, 4)),
        ("v5p-128", "v5p-128", 64, (4, 4, 4)),
        ("v5e-128", "v5e-128", 128, (8, 16)),
        ("v5litepod-8", "v5e-8", 8, (2, 4)),
        ("v6e:256", "v6e-256", 256, (16, 16)),
        ("V4-8", "v4-8", 4, (2, 2, 1)),
        ("v4-3072", "v4-3072", 1536, (8, 12, 16)),
        ("v4-8192", "v4-8192", 4096, (16, 16, 16)),
        ("v5p-640", "v5p-640", 320, (4, 4, 20)),
        ("v5p-12288", "v5p-12288", 6144, (16, 16, 24)),
        ("v4:4x4x8", "v4-256", 128, (4, 4, 8)),
        ("2xV4:4x4x16", "2xv4:4x4x16", 512, (4, 4, 16)),
        ("v5e:4x8", "v5e-32", 32, (4, 8)),
    ],
)
def test_names_of_google_and_numbers_of_chips(text, name, chips, shape):
    found = parse_slice(text)
    assert (found.name, found.chips, found.shape) == (name, chips, shape)
    assert str(found) == f"{name} ({chips} chips)"
    assert parse_slice(found.name) == found


@pytest.mark.parametrize(
    "text, told",
    [
        ("v4-7", "v4 has no such slice; the nearest are v4-8 (4 chips), v4-16 (8 chips)"),
        ("v4:100", "v4-256 (128 chips)"),
        ("v3-8", "known chips: v4, v5p, v5e, v6e"),
        ("0xv4-8", "2xv4-128 for two"),
        ("v4", "use Google's name"),
        ("v4:4x6x8", "v4:4x6x8: v4 has no such slice; the nearest are v4-256 (128 chips) 4x4x8"),
        ("v4:8x4x4", "the nearest are v4-128 (64 chips) 4x4x4, v4-256 (128 chips) 4x4x8"),
        ("v5e:32x32", "v5e-256 (256 chips) 16x16"),
        ("v5e:4x4x4", "no such slice"),
        ("v4:16x16x20", "no such slice"),
        ("v4:0x4x4", "no such slice"),
        ("v5p-12416", "v5p-12288 (6144 chips)"),
        ("v4-0", "the nearest are v4-8"),
        ("", "use Google's name"),
    ],
)
def test_what_is_no_slice_is_said_with_what_is_near(text, told):
    with pytest.raises(UserError, match=re.escape(told)) as error:
        parse_slice(text)
    assert len(str(error.value).splitlines()) <= 2


def test_shapes_are_of_different_sizes():
    for kind, chip in CHIPS.items():
        sizes = [math.prod(shape) for shape in chip.shapes]
        assert len(set(sizes)) == len(sizes), kind
