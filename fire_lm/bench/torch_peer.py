"""The models of `bench.attention` and `bench.model` in PyTorch, as a PyTorch user would write them.

The layers are pre-norm and compute queries, keys and values in one product. They use PyTorch's own
fused attention (scaled_dot_product_attention), in causal mode if there is no bias and, for FIRE,
with the bias as a float mask. FIRE follows the formula (Eq. 4 of the paper) as written in Appendix
E, for all pairs of positions at once, with one or two hidden layers in the MLP. Every transformer
layer computes its own bias.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fire_lm.bench.torch_weights import torch_state
from fire_lm.errors import UserError
from fire_lm.models import ModelSize
from fire_lm.training import AdamW

NAME = "torch"
VERSION: str = torch.__version__
IMPLEMENTATION = "sdpa"


def start(backend: str) -> None:
    """Limit PyTorch to one thread, and select the device that matches JAX's backend."""
    torch.set_num_threads(1)
    if backend != "cpu":
        if not torch.cuda.is_available():
            raise UserError(
                f"--peer torch: JAX runs on a {backend}, but PyTorch finds no GPU: omit --peer, or "
                "set JAX_PLATFORMS=cpu to compare on the CPU"
            )
        torch.set_default_device("cuda")
        torch.set_float32_matmul_precision("high")  # TF32, which is JAX's default on a GPU


def finish() -> None:
    """Wait until the device has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def matmul(size: int) -> Callable[[], None]:
    square = torch.randn(size, size)

    def call() -> None:
        square @ square
        finish()

    return call


class Attention(nn.Module):
    """Causal self-attention without positional encoding."""

    def __init__(self, size: ModelSize):
        super().__init__()
        self.heads = (size.num_heads, size.head_dim)
        width = size.num_heads * size.head_dim
        self.to_qkv = nn.Linear(size.hidden_size, 3 * width)
        self.out = nn.Linear(width, size.hidden_size)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(-1, self.heads).transpose(1, 2)
            for part in self.to_qkv(x_BTD).chunk(3, dim=-1)
        )
        return self.out(self.mix(q, k, v).transpose(1, 2).flatten(2))

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the attention output; all tensors are `[B, N, T, H]`."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class RotaryAttention(Attention):
    """Attention with RoPE of base 10,000; a rotated pair has one element in each half of a head."""

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length, width = q.shape[-2:]
        frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
        angle = torch.arange(length, dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()

        def turned(x: torch.Tensor) -> torch.Tensor:
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

        return super().mix(turned(q), turned(k), v)


class FireAttention(Attention):
    """Attention with a FIRE bias, whose parameters belong to one layer."""

    init_L, epsilon = 512.0, 1e-6

    def __init__(self, size: ModelSize, hidden_layers: int):
        super().__init__(size)
        widths = [1, *[32] * hidden_layers]
        hidden = [[nn.Linear(a, b), nn.ReLU()] for a, b in itertools.pairwise(widths)]
        self.mlp = nn.Sequential(*sum(hidden, []), nn.Linear(widths[-1], size.num_heads))
        self.c = nn.Parameter(torch.tensor(0.1))
        self.L_multiplier = nn.Parameter(torch.tensor(1.0))

    def bias(self, length: int) -> torch.Tensor:
        """Return the bias `[1, N, T, T]`.

        A key after the query gets the bias of the key at the same distance before the query.
        """
        position = torch.arange(length, dtype=torch.float32)
        threshold = (self.L_multiplier * self.init_L).abs()
        scale = (self.c * torch.maximum(position, threshold)).abs().log1p() + self.epsilon
        distance = position[:, None] - position
        x = (self.c * distance).abs().log1p() / scale[:, None]
        return self.mlp(x[..., None]).permute(2, 0, 1)[None]

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[-2]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask = self.bias(length).masked_fill(later, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# The keys are encoding names from `encodings.ENCODINGS`.
ATTENTIONS: dict[str, Callable[[ModelSize], Attention]] = {
    "nope": Attention,
    "rope": RotaryAttention,
    "fire": functools.partial(FireAttention, hidden_layers=2),
    "fire_appendix_e": functools.partial(FireAttention, hidden_layers=1),
}


class Block(nn.Module):
    def __init__(self, size: ModelSize, attention: Attention):
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.hidden_size)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(size.hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(size.hidden_size, size.mlp_size),
            nn.GELU(approximate="tanh"),
            nn.Linear(size.mlp_size, size.hidden_size),
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


class TorchDecoder(nn.Module):
    """A decoder from tokens `[B, T]` to logits `[B, T, V]`; the head shares the embedding."""

    def __init__(self, name: str, size: ModelSize, vocab_size: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, size.hidden_size)
        attentions = [ATTENTIONS[name](size) for _ in range(size.num_layers)]
        self.blocks = nn.Sequential(*(Block(size, attention) for attention in attentions))
        self.final_norm = nn.LayerNorm(size.hidden_size)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.final_norm(self.blocks(self.embedding(tokens_BT)))
        return F.linear(x_BTD, self.embedding.weight)


class Peer:
    """A decoder with its optimizer; every call returns only when the work is done."""

    def __init__(self, name: str, size: ModelSize, vocab_size: int, learning_rate: float):
        self.model = TorchDecoder(name, size, vocab_size)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(
            self.model.parameters(), lr=learning_rate
        )

    def load(self, params: dict[str, Any]) -> None:
        """Load our decoder's weights, which are NumPy arrays with stacked layers."""
        state = {
            name: torch.tensor(array, dtype=torch.float32)
            for name, array in torch_state(params).items()
        }
        self.model.load_state_dict(state)  # This rejects names and shapes that do not match.

    @staticmethod
    def tokens(tokens_BT: np.ndarray) -> torch.Tensor:
        return torch.tensor(tokens_BT, dtype=torch.long)

    @torch.no_grad()
    def logits(self, tokens_BT: torch.Tensor) -> np.ndarray:
        return self.model(tokens_BT).cpu().numpy()

    @torch.no_grad()
    def forward(self, tokens_BT: torch.Tensor) -> None:
        self.model(tokens_BT)
        finish()

    def train(self, targets_BT: torch.Tensor) -> None:
        """Train for one step; the inputs are the targets shifted right by one, starting with 0."""
        self.optimizer.zero_grad()
        with self.precision():
            logits_BTV = self.model(F.pad(targets_BT[:, :-1], (1, 0)))
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
        loss.backward()
        self.update()
        finish()

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the forward pass: here, float32."""
        return contextlib.nullcontext()

    def update(self) -> None:
        self.optimizer.step()


class Pretrained(Peer):
    """A decoder that is trained as by `pretrain`: AdamW on gradients of a bounded norm."""

    def __init__(self, name: str, size: ModelSize, vocab_size: int, settings: AdamW, dtype: str):
        super().__init__(name, size, vocab_size, settings.learning_rate)
        self.clip_norm, self.dtype = settings.clip_norm, dtype
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.b1, settings.b2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context for the forward pass, in which products have the dtype of the model."""
        kind = next(self.model.parameters()).device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.dtype == "bfloat16")

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        super().update()
