"""The table that `status` prints: resources with their age, chip-hours and progress."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from fire_lm.errors import UserError
from fire_lm.hardware.slices import parse_slice

_COLUMNS = ("name", "state", "accelerator", "tier", "user", "since", "chip-hours", "newest step")


def show(rows: Sequence[dict[str, str]], where: ConfigDict, progress: Callable[[str], str]) -> None:
    """Print a row for each resource.

    Args:
      rows: The resources, from `Backend.listing`.
      where: The cluster.
      progress: Returns a description of the progress of the run in a folder.
    """
    print(f"billed project: {where.project}; zone: {where.zone}")
    if not rows:
        print("no resources found")
        return
    now = datetime.datetime.now(datetime.UTC)
    full = [
        {**row, "chip-hours": chip_hours(row, now), "newest step": progress(row.get("folder", ""))}
        for row in rows
    ]
    widths = {c: max(len(c), *(len(row.get(c, "")) for row in full)) for c in _COLUMNS}
    for row in [{c: c for c in _COLUMNS}, *full]:
        print("  ".join(f"{row.get(c, ''):{widths[c]}}" for c in _COLUMNS).rstrip())
    for row in rows:
        if row.get("advice"):
            print(f"{row['name']}: {row['advice']}")


def chip_hours(row: dict[str, str], now: datetime.datetime) -> str:
    """Return the chip-hours since `row["since"]`, or "" if the time or the chips are unknown."""
    if not row.get("since"):
        return ""
    since = datetime.datetime.fromisoformat(row["since"]).replace(tzinfo=datetime.UTC)
    hours = max(0.0, (now - since).total_seconds() / 3600)
    try:
        chips = int(row["chips"]) if "chips" in row else parse_slice(row["accelerator"]).chips
    except UserError:
        return ""
    return f"{chips * hours:,.1f}"
