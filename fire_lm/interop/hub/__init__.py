"""The model in PyTorch: copied into folders that `fire-lm export` writes, never imported here."""
