"""The settings that all of your slices share. Fill in the values once (see tpu/README.md)."""

from ml_collections import ConfigDict

from tpu.cluster import base


def site() -> ConfigDict:
    config = base()
    config.project = ""
    config.bucket = ""
    config.image = ""
    return config
