"""Data sets and vocabularies made from the user's files or from text that every machine has."""
