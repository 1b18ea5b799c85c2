"""Data sets and vocabularies made from the user's files or from the embedded text.

The embedded text is the source code of the installed Python and JAX, and Python's help texts.
"""
