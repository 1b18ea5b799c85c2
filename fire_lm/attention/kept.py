"""What the backward pass of an attention kernel needs of the forward one, by name.

For policies of rematerialisation: it is little (the output and a number for each query and head),
and to compute it again takes the whole forward pass.
"""

KEPT = "attention_outputs"
