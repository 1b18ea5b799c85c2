"""Creation of data sets and vocabularies, from the user's files or from text on every machine."""
