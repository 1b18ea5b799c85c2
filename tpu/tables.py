"""The table that `status` prints: resources with their age, chip-hours and progress."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from fire_lm.console import columns
from fire_lm.errors import UserError
from fire_lm.hardware.slices import parse_slice
from tpu.cost import in_words

_COLUMNS = ("name", "state", "accelerator", "tier", "user", "since", "chip-hours", "newest step")


def show(
    rows: Sequence[dict[str, str]],
    where: ConfigDict,
    progress: Callable[[str], str],
    name: str | None = None,
) -> None:
    """Print a row for each resource, and what they have cost so far.

    Args:
      rows: The resources, from `Backend.listing`.
      progress: Returns a description of the progress of the run in a folder.
      name: The resource whose cost is also printed by itself, if any.
    """
    print(f"billed project: {where.project}; zone: {where.zone}")
    if not rows:
        print("no resources found")
        return
    now = datetime.datetime.now(datetime.UTC)
    spent = [chip_hours(row, now) for row in rows]
    full = [
        {**row, "newest step": progress(row.get("folder", ""))}
        | {"chip-hours": "" if used is None else f"{used:,.1f}"}
        for row, used in zip(rows, spent, strict=True)
    ]
    print("\n".join(columns([_COLUMNS, *([row.get(c, "") for c in _COLUMNS] for row in full)])))
    for row in rows:
        if row.get("advice"):
            print(f"{row['name']}: {row['advice']}")
    price = where.price_per_chip_hour
    for row, used in zip(rows, spent, strict=True):
        if row["name"] == name and used is not None:
            print(f"{name}: {in_words(used, price)} so far")
    print(f"all of these: {in_words(sum(filter(None, spent)), price)} so far")


def chip_hours(row: dict[str, str], now: datetime.datetime) -> float | None:
    """Return the chip-hours since `row["since"]`, or None if the time or the chips are unknown."""
    if not row.get("since"):
        return None
    since = datetime.datetime.fromisoformat(row["since"]).replace(tzinfo=datetime.UTC)
    hours = max(0.0, (now - since).total_seconds() / 3600)
    try:
        chips = int(row["chips"]) if "chips" in row else parse_slice(row["accelerator"]).chips
    except UserError:
        return None
    return chips * hours
