"""Data sets from files, or from the text that every machine has; vocabularies trained on them."""
