"""128 v5e chips as nodes of a GKE cluster with JobSet."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    return site(
        accelerator="v5e-128", zone="us-west4-a", gke_context="gke_PROJECT_us-west4_fire-lm"
    )
