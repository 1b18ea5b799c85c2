"""TPU slices by name, the properties of chips, and the convention for counting FLOPs."""
