"""TPU slices by name, chips and their peaks, FLOPs by one convention."""
