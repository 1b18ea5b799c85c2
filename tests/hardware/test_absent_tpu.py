"""A notebook on a machine without a TPU: importing the model keeps JAX from loading libtpu."""

import os
import subprocess
import sys

import pytest

CALL = "import fire_lm.models, jax; print(jax.devices()[0].platform)"


@pytest.mark.ci
def test_the_first_call_of_jax_prints_no_errors_of_libtpu():
    quiet = ("JAX_PLATFORMS", "TPU_SKIP_MDS_QUERY", "TF_CPP_MIN_LOG_LEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in quiet}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("cpu\n", "")
