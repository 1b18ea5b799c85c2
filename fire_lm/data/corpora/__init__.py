"""Data sets and vocabularies made from the user's files or from text present on every machine."""
