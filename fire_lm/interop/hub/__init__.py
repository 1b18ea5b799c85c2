"""The decoder in PyTorch. `fire-lm export` copies these files; fire_lm never imports them."""
