"""The name of the arrays that rematerialisation policies save instead of recomputing.

These arrays are small but expensive to recompute. They are the output of an attention kernel and
one number for each query and head, which only the complete forward kernel could recompute, and the
statistics of a norm, which would take passes over all activations.
"""

SAVED = "saved"
