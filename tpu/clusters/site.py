"""What all of your slices share: fill it in once (README.md says how to make these)."""

from ml_collections import ConfigDict

from tpu.cluster import base


def site() -> ConfigDict:
    config = base()
    config.project = ""
    config.bucket = ""
    config.image = ""
    return config
