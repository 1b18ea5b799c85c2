"""Four v4 chips on a host, for the paper's batch in 8 microbatches (configs/slices/v4_8.gin)."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v4-8"
    config.zone = "us-central2-b"
    return config
