"""Our model in Hugging Face transformers, whose `generate` is compared with our generation."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from fire_lm.interop.model_files import write_model
from fire_lm.models import Decoder

NAME = f"transformers {transformers.__version__}, torch {torch.__version__}"


class Peer:
    """A decoder exported to transformers, together with its prompts `[B, P]`."""

    def __init__(self, model: Decoder, params: Any, prompts_BP: np.ndarray, new_tokens: int):
        torch.set_num_threads(1)
        context = prompts_BP.shape[1] + new_tokens
        with tempfile.TemporaryDirectory() as folder:
            write_model(model, params, context, end=1, folder=Path(folder))
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=True
            ).eval()
        # Our generation continues after the end-of-document token, and the peer must do so too, so
        # that both generate the same number of tokens. (If a minimum number of new tokens were set,
        # transformers would never generate the end-of-document token.)
        self._model.generation_config.eos_token_id = None
        self._prompts = torch.tensor(prompts_BP, dtype=torch.long)

    def call(self, new_tokens: int) -> Callable[[], np.ndarray]:
        """Return a function that greedily generates ids `[B, new_tokens]`, none of which is 0."""
        config = transformers.GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, suppress_tokens=[0], pad_token_id=0
        )

        def generate() -> np.ndarray:
            with torch.no_grad():
                out = self._model.generate(
                    self._prompts,
                    attention_mask=torch.ones_like(self._prompts),
                    generation_config=config,
                )
            ids: np.ndarray = out[:, self._prompts.shape[1] :].numpy()
            return ids

        return generate
