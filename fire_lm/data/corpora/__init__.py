"""Data sets and vocabularies made from the user's files, or from text that comes with Python.

The latter is the source code and the help texts of the installed Python and JAX.
"""
