"""Data sets written from files or from the text that every machine has; vocabularies trained on them."""
