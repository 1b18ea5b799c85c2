"""Tasks with answers, which a model is trained on and scored by."""
