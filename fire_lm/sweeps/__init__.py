"""Sweeps: which checkpoints, under which settings, by whom; following a run that trains."""
