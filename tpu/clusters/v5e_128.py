"""128 v5e chips as a queued resource."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v5e-128"
    config.zone = "us-west4-a"
    return config
