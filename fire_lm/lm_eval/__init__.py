"""Runs the lm-evaluation-harness on a run: `python -m fire_lm.lm_eval run --model fire_lm ...`.

It needs `pip install -e '.[lm-eval]'`. `model` answers the requests of the harness, and `engine`
holds the run's model on the devices of all processes.
"""
