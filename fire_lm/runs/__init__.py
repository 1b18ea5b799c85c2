"""Tools for finding, reading and resuming runs."""
