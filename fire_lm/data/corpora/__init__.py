"""Data sets made from files or from text that every machine has, and vocabularies for them."""
