"""Tasks that consist of inputs with answers, on which models are trained and scored."""
