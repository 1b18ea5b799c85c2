"""The model in PyTorch. `fire-lm export` copies it into folders; fire_lm never imports it."""
