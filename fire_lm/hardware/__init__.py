"""TPU slices by name, the properties of chips, and FLOPs by one convention."""
