"""A user's module for --import: SCROLLS in one mixture, to finetune one run on all of it."""

import os

import seqio

from fire_lm.data import suites

NAMES = [
    name
    for name in suites.register(os.environ["SUITES_DATA"], "bytes")
    if name.startswith("fire_lm:scrolls_")
]
if "scrolls_together" not in seqio.MixtureRegistry.names():  # a test process imports this once
    seqio.MixtureRegistry.add("scrolls_together", [(name, 1.0) for name in NAMES])
