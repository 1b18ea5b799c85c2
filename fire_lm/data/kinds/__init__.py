"""The kinds of data that gin can bind, one per file; each says how it is read."""

from fire_lm.data.kinds.masked_text import MaskedText
from fire_lm.data.kinds.seqio_task import SeqioTask
from fire_lm.data.kinds.synthetic import Synthetic
from fire_lm.data.kinds.text_data import TextData
from fire_lm.data.kinds.text_to_text import Pairs, TextToText
from fire_lm.data.kinds.token_blocks import Blocks

__all__ = ["Blocks", "MaskedText", "Pairs", "SeqioTask", "Synthetic", "TextData", "TextToText"]
