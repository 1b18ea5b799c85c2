"""The name of the arrays that rematerialisation policies save: small, but expensive to recompute.

These arrays are the output of an attention kernel and one number for each query and head, whose
recomputation takes the whole forward kernel, and the statistics of a norm, whose recomputation
takes passes over all activations.
"""

SAVED = "saved"
