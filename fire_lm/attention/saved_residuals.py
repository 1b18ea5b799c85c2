"""The name of what policies of rematerialisation keep: little to store, much to compute again.

It is the output of an attention kernel with a number for each query and head, which take the whole
forward kernel, and the statistics of a norm, which take passes over all activations.
"""

SAVED = "saved"
