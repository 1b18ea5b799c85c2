"""Evaluation of many checkpoints, settings and runs, by several jobs or during training."""
