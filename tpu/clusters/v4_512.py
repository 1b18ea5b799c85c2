"""256 v4 chips, for the paper's runs with 350M parameters."""

from ml_collections import ConfigDict

from tpu.clusters.site import site


def get_config() -> ConfigDict:
    config = site()
    config.accelerator = "v4-512"
    config.zone = "us-central2-b"
    return config
