"""Strict settings for every test; this file is imported before any test can start JAX.

Four fake CPU devices, no implicit dtype promotion, no implicit rank promotion; warnings are errors
(pyproject.toml). The environment variables reach the processes that a test starts, the JAX
settings do not: users run without those.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["XLA_FLAGS"] = " ".join(
    filter(
        None,
        [os.environ.get("XLA_FLAGS"), "--xla_force_host_platform_device_count=4"],
    )
)

import jax  # noqa: E402  (the variables above must be set first)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
