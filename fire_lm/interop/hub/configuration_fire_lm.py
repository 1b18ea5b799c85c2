"""The configuration of a fire_lm model in Hugging Face transformers."""

from transformers import PretrainedConfig


class FireLMConfig(PretrainedConfig):
    """The configuration of a pre-norm decoder or encoder with any positional encoding of fire_lm.

    If layers differ in `causal`, `log_n`, `windows` or `chunks`, these are lists that alternate by
    layer.

    Attributes:
      positions: The encodings, which alternate by layer. Each encoding is a dict of its settings,
        including its `type`, which is a key of `POSITIONS` in modeling_fire_lm.py.
      share_position: Whether all layers with an encoding share one set of its parameters.
      causal: Whether a token sees only itself and earlier tokens; False in encoders.
      log_n: The settings for scaling attention by log n, or None.
      windows: The number of tokens that a token sees, including itself, or None for all.
      chunks: The number of tokens in a block outside which a token sees nothing, or None.
      context_length: The input length that length-dependent encodings assume (dynamic NTK,
        RoPE's scalings with an automatic factor, ALiBi with interpolation, xPos); None if no
        encoding depends on the length.
    """

    model_type = "fire_lm"

    def __init__(
        self,
        vocab_size=384,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=3,
        head_dim=32,
        intermediate_size=384,
        positions=(),
        share_position=False,
        causal=True,
        log_n=None,
        windows=None,
        chunks=None,
        train_length=64,
        context_length=None,
        initializer_range=0.02,
        tie_word_embeddings=True,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.head_dim = head_dim
        self.intermediate_size = intermediate_size
        self.positions = list(positions) or [{"type": "none"}]
        self.share_position = share_position
        self.causal = causal
        self.log_n = log_n
        self.windows = windows
        self.chunks = chunks
        self.train_length = train_length
        self.context_length = context_length
        self.initializer_range = initializer_range
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
