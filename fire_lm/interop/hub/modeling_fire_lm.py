"""A self-contained fire_lm decoder or encoder in PyTorch, with all positional encodings of fire_lm.

Shapes: B batch, T queries, S keys, N heads, H head dim, D model, K frequencies. Positions are
computed in float32, and angles in float64.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput

from .configuration_fire_lm import FireLMConfig

# The position of keys that no query sees: padding, and cache slots that have not been written.
UNSEEN = 2**30


class Position(nn.Module):
    """The hooks through which positions enter the model; by default, they have no effect."""

    def __init__(self, config, settings):
        super().__init__()
        self.settings = settings
        self.num_heads = config.num_attention_heads

    def embed(self, x_BTD, pos_BT):
        return x_BTD

    def rotate(self, q_BNTH, k_BNTH, pos_BT):
        return q_BNTH, k_BNTH

    def bias(self, q_pos_BT, k_pos_BS):
        """Return the bias of attention logits, `[B, N, T, S]`, or None."""
        return None


class Table(Position):
    """Learned absolute positions, added to embeddings."""

    def __init__(self, config, settings):
        super().__init__(config, settings)
        self.embedding = nn.Parameter(torch.zeros(settings["rows"], config.hidden_size))

    def embed(self, x_BTD, pos_BT):
        return x_BTD + self.embedding[pos_BT].to(x_BTD.dtype)


class Waves(Position):
    """Interleaved sines and cosines, added to embeddings times sqrt(D) (Vaswani et al., 2017)."""

    def embed(self, x_BTD, pos_BT):
        angle_BTK = angles(pos_BT, self.settings["frequencies"])
        waves_BTD = torch.stack([angle_BTK.sin(), angle_BTK.cos()], -1).flatten(-2).float()
        return (math.sqrt(x_BTD.shape[-1]) * x_BTD.float() + waves_BTD).to(x_BTD.dtype)


class Rotary(Position):
    """RoPE (Su et al., 2021), with the frequencies and the attention factor of any scaling."""

    def rotate(self, q_BNTH, k_BNTH, pos_BT):
        angle_BTK = angles(pos_BT, self.settings["frequencies"])
        factor = self.settings["factor"]
        cos_BTK, sin_BTK = factor * angle_BTK.cos(), factor * angle_BTK.sin()
        interleaved = self.settings["interleaved"]
        return tuple(turned(x, cos_BTK, sin_BTK, interleaved) for x in (q_BNTH, k_BNTH))


class XPos(Position):
    """xPos (Sun et al., 2022): rotation with decay relative to the middle of the input."""

    def rotate(self, q_BNTH, k_BNTH, pos_BT):
        angle_BTK = angles(pos_BT, self.settings["frequencies"])
        decay_BTK = angles(pos_BT - self.settings["centre"], self.settings["rates"])
        cos_BTK, sin_BTK = angle_BTK.cos(), angle_BTK.sin()
        q_BTK, k_BTK = (-decay_BTK).exp(), decay_BTK.exp()
        return (
            turned(q_BNTH, cos_BTK * q_BTK, sin_BTK * q_BTK, interleaved=True),
            turned(k_BNTH, cos_BTK * k_BTK, sin_BTK * k_BTK, interleaved=True),
        )


class Linear(Position):
    """ALiBi (Press et al., 2022): `-slope * (i - j)`."""

    def bias(self, q_pos_BT, k_pos_BS):
        slopes_N = torch.tensor(self.settings["slopes"], device=q_pos_BT.device)
        return -slopes_N[:, None, None] * distances(q_pos_BT, k_pos_BS)[:, None]


class KerpleLog(Position):
    """Logarithmic KERPLE (Chi et al., 2022a): `-p * log(1 + a * d)`, with p and a clipped."""

    def __init__(self, config, settings):
        super().__init__(config, settings)
        self.p = nn.Parameter(torch.ones(self.num_heads))
        self.a = nn.Parameter(torch.ones(self.num_heads))

    def bias(self, q_pos_BT, k_pos_BS):
        d_B1TS = distances(q_pos_BT, k_pos_BS)[:, None]
        p, a = self.clipped()
        return -p * torch.log1p(a * d_B1TS)

    def clipped(self):
        """Return p and a clipped to their ranges, `[N, 1, 1]`; gradients pass unchanged."""
        for name in ("p", "a"):
            x_N = getattr(self, name).float()
            constant_N = x_N.detach()
            x_N = constant_N.clamp(*self.settings[name]) + (x_N - constant_N)
            yield x_N[:, None, None]


class KerplePower(KerpleLog):
    """Power KERPLE: `-a * d**p`, with p and a clipped."""

    def bias(self, q_pos_BT, k_pos_BS):
        d_B1TS = distances(q_pos_BT, k_pos_BS)[:, None]
        p, a = self.clipped()
        return -a * d_B1TS**p


class Buckets(Position):
    """T5's relative bias (Raffel et al., 2020): a learned bias for each bucket of distances.

    In encoders, later keys have buckets of their own, after those of earlier keys.
    """

    def __init__(self, config, settings):
        super().__init__(config, settings)
        self.later = settings.get("later", False)
        self.buckets = len(settings["starts"]) + 1
        rows = 2 * self.buckets if self.later else self.buckets
        self.table = nn.Parameter(torch.zeros(rows, self.num_heads))

    def bias(self, q_pos_BT, k_pos_BS):
        starts_K = torch.tensor(self.settings["starts"], device=q_pos_BT.device)
        difference_BTS = q_pos_BT[:, :, None] - k_pos_BS[:, None, :]
        bucket_BTS = torch.searchsorted(starts_K, difference_BTS.abs().contiguous(), right=True)
        if self.later:
            bucket_BTS = bucket_BTS + self.buckets * (difference_BTS < 0)
        return self.table.float()[bucket_BTS].movedim(-1, 1)


class Sandwich(Position):
    """Sandwich (Chi et al., 2022b): a sum of cosines of the distance."""

    def bias(self, q_pos_BT, k_pos_BS):
        distance_BTS = q_pos_BT[:, :, None] - k_pos_BS[:, None, :]
        sum_BTS = angles(distance_BTS, self.settings["frequencies"]).cos().sum(-1)
        scales_N = torch.tensor(self.settings["scales"], device=q_pos_BT.device)
        return scales_N[:, None, None] * sum_BTS[:, None]


class Fire(Position):
    """FIRE (Li et al., 2024, Eq. 4), f(psi(i - j) / psi(max(L, i))), or FIRE-G (length gain).

    With a frozen normaliser, i is at most `last_position`, and f is a straight line beyond 1.
    """

    def __init__(self, config, settings):
        super().__init__(config, settings)
        widths = [1, *[settings["width"]] * settings["hidden_layers"], self.num_heads]
        self.dense = nn.ModuleList(
            nn.Linear(into, out) for into, out in zip(widths, widths[1:], strict=False)
        )
        for name in ("c", "L", "gamma"):
            if name in settings["learned"]:
                setattr(self, name, nn.Parameter(torch.tensor(1.0)))
        self.activation, self.slope = {
            "relu": (F.relu, lambda x: (x > 0).to(x.dtype)),
            "gelu": (lambda x: F.gelu(x, approximate="tanh"), gelu_slope),
            "gelu_exact": (F.gelu, exact_gelu_slope),
        }[settings["activation"]]

    def bias(self, q_pos_BT, k_pos_BS):
        settings = self.settings
        i_BT = q_pos_BT.float() + settings["query_index_offset"]
        frozen = settings["last_position"] is not None
        if frozen:
            i_BT = i_BT.clamp(max=settings["last_position"])
        threshold = self.L.abs() if hasattr(self, "L") else settings["L"]
        norm_BT = torch.clamp(i_BT, min=threshold)
        psi_BTS = self.psi(distances(q_pos_BT, k_pos_BS))
        x_BTS = psi_BTS / (self.psi(norm_BT) + settings["epsilon"])[:, :, None]
        out_BTSN = self.straight_beyond_1(x_BTS) if frozen else self.f(x_BTS)
        if settings["final_activation"]:
            out_BTSN = self.activation(out_BTSN)
        bias_BNTS = out_BTSN.movedim(-1, 1)
        if hasattr(self, "gamma"):
            psi_L = self.psi(torch.as_tensor(threshold, device=i_BT.device))
            gain_BT = (self.psi(norm_BT) / psi_L) ** self.gamma
            bias_BNTS = gain_BT[:, None, :, None] * bias_BNTS
        return bias_BNTS

    def f(self, x):
        """Apply the MLP to every entry of x: `[...] -> [..., N]`."""
        hidden = x[..., None]
        for index, layer in enumerate(self.dense):
            hidden = layer(hidden)
            if index < len(self.dense) - 1:
                hidden = self.activation(hidden)
        return hidden

    def straight_beyond_1(self, x):
        """Return f(x) up to x = 1, and f(1) + f'(1) (x - 1) beyond."""
        at_1 = slope = torch.ones(1, device=x.device)
        for index, layer in enumerate(self.dense):
            at_1, slope = layer(at_1), F.linear(slope, layer.weight)
            if index < len(self.dense) - 1:
                at_1, slope = self.activation(at_1), self.slope(at_1) * slope
        return self.f(x.clamp(max=1)) + slope * F.relu(x - 1)[..., None]

    def psi(self, x):
        return torch.log1p(self.c.abs() * x) if hasattr(self, "c") else x


POSITIONS = {
    "none": Position,
    "table": Table,
    "waves": Waves,
    "rotary": Rotary,
    "xpos": XPos,
    "linear": Linear,
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "buckets": Buckets,
    "sandwich": Sandwich,
    "fire": Fire,
}


def position_for(config, turn):
    settings = config.positions[turn]
    return POSITIONS[settings["type"]](config, settings)


def gelu_slope(x):
    """Return the derivative of the tanh approximation of GELU."""
    scale = math.sqrt(2 / math.pi)
    tanh = torch.tanh(scale * (x + 0.044715 * x**3))
    return (1 + tanh + x * (1 - tanh**2) * scale * (1 + 0.134145 * x**2)) / 2


def exact_gelu_slope(x):
    density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return (1 + torch.erf(x / math.sqrt(2))) / 2 + x * density


def angles(pos, frequencies):
    """Return `pos * frequency`, float64 `[..., K]`."""
    return pos.double()[..., None] * torch.tensor(
        frequencies, dtype=torch.float64, device=pos.device
    )


def distances(q_pos_BT, k_pos_BS):
    """Return `|i - j|`, float32 `[B, T, S]`, or 0 for keys that no query sees."""
    distance_BTS = (q_pos_BT[:, :, None] - k_pos_BS[:, None, :]).abs()
    return torch.where((k_pos_BS == UNSEEN)[:, None, :], 0, distance_BTS).float()


def turned(x_BNTH, cos_BTK, sin_BTK, interleaved):
    """Rotate the pairs (a, b) of the first 2K dimensions to (a cos - b sin, b cos + a sin)."""
    cos, sin = cos_BTK[:, None].float(), sin_BTK[:, None].float()
    width = 2 * cos.shape[-1]
    first, rest = x_BNTH[..., :width].float(), x_BNTH[..., width:]
    a, b = (first[..., 0::2], first[..., 1::2]) if interleaved else first.chunk(2, -1)
    pairs = [a * cos - b * sin, b * cos + a * sin]
    first = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat([first.to(x_BNTH.dtype), rest], -1)


def of_layer(setting, index):
    """Return the setting of a layer from one for all layers, or from a list that alternates."""
    return setting[index % len(setting)] if isinstance(setting, list) else setting


class FireLMLayer(nn.Module):
    """A pre-norm layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config, index, position):
        super().__init__()
        width, inner = config.hidden_size, config.num_attention_heads * config.head_dim
        self.index, self.train_length = index, config.train_length
        self.log_n = of_layer(config.log_n, index)
        self.causal = of_layer(config.causal, index)
        self.window, self.chunk = (of_layer(x, index) for x in (config.windows, config.chunks))
        self.heads = (config.num_attention_heads, config.head_dim)
        self.attention_norm = nn.LayerNorm(width, eps=1e-5)
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.attention_out = nn.Linear(inner, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-5)
        self.mlp_in = nn.Linear(width, config.intermediate_size)
        self.mlp_out = nn.Linear(config.intermediate_size, width)
        if position is not None:
            self.position = position

    def forward(self, x_BTD, pos_BT, k_pos_BS, cache, position, document_BT=None):
        i_B1T1, j_B11S = pos_BT[:, None, :, None], k_pos_BS[:, None, None, :]
        mask_B1TS = (j_B11S <= i_B1T1) if self.causal else (j_B11S != UNSEEN) & (i_B1T1 >= 0)
        if self.window is not None:
            mask_B1TS = mask_B1TS & ((i_B1T1 - j_B11S).abs() < self.window)
        if self.chunk is not None:
            mask_B1TS = mask_B1TS & (i_B1T1 // self.chunk == j_B11S // self.chunk)
        if document_BT is not None:
            mask_B1TS = mask_B1TS & (document_BT[:, None, :, None] == document_BT[:, None, None, :])
        y_BTD = self.attention_norm(x_BTD)
        q_BNTH, k_BNTH, v_BNTH = (
            linear(y_BTD).unflatten(-1, self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q_BNTH, k_BNTH = position.rotate(q_BNTH, k_BNTH, pos_BT)
        if cache is not None:
            k_BNTH, v_BNTH = cache.update(k_BNTH, v_BNTH, self.index)
        bias_BNTS = position.bias(pos_BT, k_pos_BS)
        if self.log_n is not None:
            factor_BT = self.log_n_factor(mask_B1TS[:, 0].sum(-1))
            if self.log_n["on"] != "bias":
                q_BNTH = (q_BNTH.float() * factor_BT[:, None, :, None]).to(q_BNTH.dtype)
            if self.log_n["on"] != "logits" and bias_BNTS is not None:
                bias_BNTS = bias_BNTS * factor_BT[:, None, :, None]
        # The mask value is finite because padding sees no keys, and its rows must not become NaN.
        bias_BNTS = q_BNTH.new_zeros(()) if bias_BNTS is None else bias_BNTS.to(q_BNTH.dtype)
        bias_BNTS = torch.where(mask_B1TS, bias_BNTS, torch.finfo(q_BNTH.dtype).min / 2)
        out_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNTH, v_BNTH, attn_mask=bias_BNTS)
        x_BTD = x_BTD + self.attention_out(out_BNTH.transpose(1, 2).flatten(-2))
        return x_BTD + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD)), approximate="tanh"))

    def log_n_factor(self, keys_BT):
        """Return log(n) / log(train_length) for queries that see n keys, `[B, T]` (Su, 2021).

        If clipped, the factor is 1 for n <= train_length.
        """
        keys_BT = keys_BT.clamp(min=1).float()
        factor_BT = keys_BT.log() / math.log(self.train_length)
        if self.log_n["clipped"]:
            factor_BT = torch.where(keys_BT > self.train_length, factor_BT, 1.0)
        return factor_BT


class FireLMPreTrainedModel(PreTrainedModel):
    config_class = FireLMConfig
    base_model_prefix = "model"
    _no_split_modules = ["FireLMLayer"]
    _supports_sdpa = True
    _keep_in_fp32_modules_strict = ["position", "positions"]


class FireLMModel(FireLMPreTrainedModel):
    """A decoder or encoder without the output head, which maps tokens to the last hidden states."""

    def __init__(self, config):
        super().__init__(config)
        kinds = config.positions
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.share_position:
            self.positions = nn.ModuleList(position_for(config, turn) for turn in range(len(kinds)))
        self.layers = nn.ModuleList(
            FireLMLayer(
                config,
                index,
                None if config.share_position else position_for(config, index % len(kinds)),
            )
            for index in range(config.num_hidden_layers)
        )
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=1e-5)
        self.post_init()

    def position_of(self, index):
        if self.config.share_position:
            return self.positions[index % len(self.positions)]
        return self.layers[index].position

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        use_cache=None,
        inputs_embeds=None,
    ):
        x_BTD = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length = x_BTD.shape[:2]
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        past = 0 if cache is None else int(cache.get_seq_length())
        real_BT = real_tokens(attention_mask, past, length)
        pos_BT = positions(position_ids, attention_mask, past, batch, length, x_BTD.device)
        k_pos_BT = pos_BT if real_BT is None else pos_BT.masked_fill(~real_BT, UNSEEN)
        k_pos_BS = keys_of(cache, k_pos_BT, past)
        packed = cache is None and position_ids is not None
        document_BT = documents(pos_BT, real_BT) if packed else None
        x_BTD = self.position_of(0).embed(x_BTD, pos_BT)
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, pos_BT, k_pos_BS, cache, self.position_of(index), document_BT)
        return self.final_norm(x_BTD), cache


def real_tokens(attention_mask, past, length):
    """Return which tokens of this call are not padding, bool `[B, T]`, or None without a mask."""
    if attention_mask is None:
        return None
    if attention_mask.dim() == 2:
        return attention_mask[:, past : past + length].bool()
    # This is the mask of a static cache. Padding is on the left, so the last token is not padding
    # and sees all other tokens that are not padding.
    row_BS = attention_mask[:, 0, -1]
    seen_BS = row_BS if row_BS.dtype == torch.bool else row_BS == 0
    return seen_BS[:, past : past + length]


def positions(position_ids, attention_mask, past, batch, length, device):
    """Return the position ids `[B, T]`, which by default count from the first non-padding token."""
    if position_ids is None and attention_mask is not None and attention_mask.dim() == 2:
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, past : past + length]
    if position_ids is None:
        position_ids = torch.arange(past, past + length, device=device)[None]
    return position_ids.expand(batch, length)


def documents(pos_BT, real_BT):
    """Return the number of each token's document, `[B, T]`: one begins where positions restart.

    Rows of several documents, as from DataCollatorWithFlattening, have such positions. Padding may
    have any positions, so a token is compared with the last one before it that is not padding.
    """
    if real_BT is None:
        return F.pad(pos_BT[:, 1:] <= pos_BT[:, :-1], (1, 0)).cumsum(-1)
    place_BT = torch.arange(pos_BT.shape[1], device=pos_BT.device).expand_as(pos_BT)
    last_BT = place_BT.masked_fill(~real_BT, 0).cummax(-1).values
    pos_BT = pos_BT.gather(-1, last_BT)
    return (F.pad(pos_BT[:, 1:] <= pos_BT[:, :-1], (1, 0)) & real_BT).cumsum(-1)


def keys_of(cache, k_pos_BT, past):
    """Return the positions `[B, S]` of all keys, and store them in the cache if there is one."""
    if cache is None:
        return k_pos_BT
    slots, _ = cache.get_mask_sizes(k_pos_BT.shape[1], 0)
    k_pos_BS = k_pos_BT.new_full((k_pos_BT.shape[0], slots), UNSEEN)
    if past:
        k_pos_BS[:, :past] = cache.key_positions[:, :past]
    k_pos_BS[:, past : past + k_pos_BT.shape[1]] = k_pos_BT
    cache.key_positions = k_pos_BS
    return k_pos_BS


class FireLMWithHead(FireLMPreTrainedModel):
    """A model with the output head, whose matrix is that of the embedding."""

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = FireLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embedding

    def set_input_embeddings(self, value):
        self.model.embedding = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value


class FireLMForCausalLM(FireLMWithHead, GenerationMixin):
    """A decoder, whose logits predict the next token."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        cache=None,  # transformers 5.24 and later use this name for past_key_values
        **kwargs,
    ):
        cache = past_key_values if cache is None else cache
        hidden_BTD, cache = self.model(
            input_ids, attention_mask, position_ids, cache, use_cache, inputs_embeds
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden_BTD[:, kept])
        loss = None
        if labels is not None:
            # With num_items_in_batch, which the Trainer passes because forward takes **kwargs, this
            # is the sum over the targets divided by that number; otherwise, it is their mean.
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss, logits, cache
        )  # passed by position because the name of the cache depends on the version


class FireLMForMaskedLM(FireLMWithHead):
    """An encoder, whose logits predict the token of each place."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        labels=None,
        **kwargs,
    ):
        hidden_BTD, _ = self.model(
            input_ids, attention_mask, position_ids, use_cache=False, inputs_embeds=inputs_embeds
        )
        logits = self.lm_head(hidden_BTD)
        loss = None
        if labels is not None:
            # As in BERT, the labels are not shifted, and the loss ignores those of -100.
            loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        return MaskedLMOutput(loss, logits)
