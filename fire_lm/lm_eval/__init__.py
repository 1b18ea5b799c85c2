"""The lm-evaluation-harness over a run: `python -m fire_lm.lm_eval run --model fire_lm ...`.

Needs `pip install -e '.[lm-eval]'`. `model` is what the harness asks; `engine` is the run's model
on the devices of all processes.
"""
