"""The zones that have each kind of TPU, so that a request for a wrong zone is not sent.

The zones in the US are those of Google's table (https://cloud.google.com/tpu/docs/regions-zones),
including those that an earlier version of it gives to single tenants. We read stored copies of the
page of 2025 and 2026, which end in Europe; the zones elsewhere are from Google's codelabs and from
users' scripts, so this part may be incomplete. `gcloud compute tpus locations list` lists the zones
that a project can use.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from fire_lm.errors import UserError, nearest
from tpu.cluster import slice_of

AS_OF = "2026-11-29"  # the day on which we read the sources
_EAST5 = ("us-east5-a", "us-east5-b", "us-east5-c")
ZONES = {
    "v4": ("us-central2-b",),
    "v5e": (
        *("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a"),
        *(*_EAST5, "europe-west4-b"),
    ),
    "v5p": ("us-central1-a", *_EAST5, "us-south1-a", "europe-west4-b"),
    "v6e": (
        *("us-central1-b", "us-central1-ai1a", "us-south1-ai1b", "us-south1-a", "us-west1-c"),
        *("us-east1-d", "us-east4-a", "us-east4-b", *_EAST5),
        *("europe-west4-a", "asia-northeast1-b"),
    ),
}


def check(cluster: ConfigDict) -> None:
    """Raise UserError if the zone has no TPUs of the cluster's kind, according to `ZONES`."""
    kind = slice_of(cluster).kind
    zones = ZONES[kind]
    if not cluster.check_zone or cluster.zone in zones:
        return
    near = nearest(cluster.zone, zones)
    raise UserError(
        f"--cluster.zone={cluster.zone} has no {kind}"
        + (f": did you mean {near}?" if near else "")
        + f"\nzones with {kind}: {', '.join(zones)} (as of {AS_OF}); if Google has added this one "
        "since, set --cluster.check_zone=false"
    )
