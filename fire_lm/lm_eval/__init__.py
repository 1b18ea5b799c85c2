"""The evaluation of runs with lm-evaluation-harness: `python -m fire_lm.lm_eval run ...`.

The package requires `pip install -e '.[lm-eval]'`. The module `model` answers the requests of the
harness, and `engine` runs the model of a run on the devices of all processes.
"""
