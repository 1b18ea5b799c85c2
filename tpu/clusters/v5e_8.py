"""Eight v5e chips on a host, for the paper's batch in 8 microbatches (configs/slices/v5e_8.gin)."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v5e-8"
    config.zone = "us-west4-a"
    return config
