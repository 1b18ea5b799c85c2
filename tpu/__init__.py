"""The launcher of fire_lm on Cloud TPUs: see `python -m tpu --help` and tpu/README.md."""
