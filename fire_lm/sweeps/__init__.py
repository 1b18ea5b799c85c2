"""Sweeps: choosing checkpoints and settings, sharing the work, and following runs in training."""
