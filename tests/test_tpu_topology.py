"""Slices by name: chips, shapes, and what is refused."""

import math

import pytest

from fire_lm.errors import UserError
from fire_lm.tpu_topology import CHIPS, parse_slice


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
        ("v4-7", "v4 has no such slice; near it are v4-8 (4 chips), v4-16 (8 chips)"),
        ("v4:100", "v4-256 (128 chips)"),
        ("v3-8", "there are v4, v5p, v5e, v6e"),
        ("0xv4-8", "2xv4-128 for two"),
        ("v4", "name one as Google does"),
        ("v4-0", "near it are v4-8"),
        ("", "name one as Google does"),
    ],
)
def test_what_is_no_slice_is_said_with_what_is_near(text, told):
    with pytest.raises(UserError) as error:
        parse_slice(text)
    assert told in str(error.value) and len(str(error.value).splitlines()) <= 2


def test_shapes_are_of_different_sizes():
    for kind, chip in CHIPS.items():
        sizes = [math.prod(shape) for shape in chip.shapes]
        assert len(set(sizes)) == len(sizes), kind
