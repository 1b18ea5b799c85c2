"""Sweeps: choosing checkpoints and settings, sharing work, and following ongoing training runs."""
