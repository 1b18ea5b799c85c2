"""The meshes of the paper's runs on the devices of their slices, on a machine without a TPU.

test_preflight.py compiles their programs.
"""

import os
import subprocess
import sys

import pytest

MESHES = """
from fire_lm import sharding
from fire_lm.hardware.slices import parse_slice

# The slice and the mesh: c4_125m, c4_350m, the overrides that their headers name, two slices.
for name, sizes in [
    ("v4-256", (8, 16, 1)),
    ("v4-512", (16, 16, 1)),
    ("v4-128", (4, 16, 1)),
    ("v4-128", (64, 1, 1)),
    ("v4-128", (16, 1, 4)),
    ("2xv4-128", (8, 16, 1)),
]:
    devices = parse_slice(name).devices()
    mesh = sharding.mesh_of(sizes, devices)
    hosts = sorted({device.process_index for device in devices})
    shards = [sharding.process_shard(mesh, host) for host in hosts]
    (count,) = {count for _, count in shards}
    assert {index for index, _ in shards} == set(range(count)), shards
    print(name, sizes, len(hosts), "hosts feed", count, "parts")
"""


@pytest.mark.ci
def test_every_host_of_a_pod_slice_feeds_its_part_of_the_batch():
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", MESHES], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("hosts feed") == 6
