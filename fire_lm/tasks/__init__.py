"""Tasks on which models are trained and scored; an example is an input and its answer."""
