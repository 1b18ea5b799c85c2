"""Text that seqio reads, tokenises and arranges in rows during a run.

Importing a module of this package imports TensorFlow, which takes 10 s.
"""
