"""Trained runs: finding, reading and resuming them."""
