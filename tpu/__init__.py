"""Launching fire_lm on Cloud TPUs. `python -m tpu --help`; README.md beside this file."""
