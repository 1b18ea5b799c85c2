"""The lm-evaluation-harness for runs: `python -m fire_lm.lm_eval run --model fire_lm ...`.

The package requires `pip install -e '.[lm-eval]'`. Its module `model` answers the requests of the
harness, and `engine` holds the run's model on the devices of all processes.
"""
