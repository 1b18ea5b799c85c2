"""128 v5e chips as nodes of a GKE cluster with JobSet."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v5e-128"
    config.zone = "us-west4-a"
    config.gke_context = "gke_PROJECT_us-west4_fire-lm"
    return config
