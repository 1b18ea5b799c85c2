"""Tasks with answers, on which models are trained and scored."""
