"""Text that is tokenised once, after which any number of hosts can read any row or batch.

`fire-lm corpus blocks` writes a set of blocks, which can be read at every length and with every
construction. Only `writer.py` imports TensorFlow; reading needs only NumPy and TensorStore.
"""
