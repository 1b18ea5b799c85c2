"""The zones that have each kind of TPU, so that a request for a wrong zone is not sent.

The zones in the US are those of Google's table (https://cloud.google.com/tpu/docs/regions-zones).
We read stored copies of the page of 2025 and 2026, which end in Europe; the zones elsewhere are
from Google's codelabs, from SkyPilot's catalog (v5p in europe-west4-b) and from users' scripts, so
this part may be incomplete. `gcloud compute tpus locations list` lists the zones that a project can
use.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from fire_lm.errors import UserError, nearest
from tpu.cluster import slice_of

AS_OF = "2026-11-29"  # the day on which we read the sources
ZONES = {
    "v4": ("us-central2-b",),
    "v5e": ("us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"),
    "v5p": ("us-central1-a", "us-east5-a", "europe-west4-b"),
    "v6e": (
        *("us-central1-b", "us-south1-ai1b", "us-south1-a", "us-east1-d"),
        *("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b"),
    ),
}
# Zones that are accepted, but never suggested: those that a version of Google's table of 2025 gives
# to single tenants, and us-central1-ai1a for v6e, which the table of 2026 calls us-central1-ai1.
RESTRICTED = {
    "v5e": ("us-east5-a", "us-east5-b", "us-east5-c"),
    "v5p": ("us-east5-b", "us-east5-c", "us-south1-a"),
    "v6e": ("us-central1-ai1a", "us-west1-c", "us-east4-a", "us-east4-b", "us-east5-c"),
}


def check(cluster: ConfigDict) -> None:
    """Raise UserError if the zone has no TPUs of the cluster's kind, according to our tables."""
    kind = slice_of(cluster).kind
    zones = ZONES[kind]
    if not cluster.check_zone or cluster.zone in (*zones, *RESTRICTED.get(kind, ())):
        return
    near = nearest(cluster.zone, zones)
    raise UserError(
        f"--cluster.zone={cluster.zone} has no {kind}"
        + (f": did you mean {near}?" if near else "")
        + f"\nzones with {kind}: {', '.join(zones)} (as of {AS_OF}); if Google has added this one "
        "since, set --cluster.check_zone=false"
    )
