"""Runs that have been trained: finding them, reading them, resuming them."""
