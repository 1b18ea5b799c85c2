"""256 v4 chips: the paper's 350M runs."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v4-512"
    config.zone = "us-central2-b"
    return config
