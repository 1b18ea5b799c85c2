"""seqio's sample SentencePiece model, found without importing seqio, which takes ten seconds."""

import importlib.util
from pathlib import Path

_SEQIO = importlib.util.find_spec("seqio")
assert _SEQIO is not None and _SEQIO.origin is not None
MODEL = str(Path(_SEQIO.origin).parent / "test_data" / "sentencepiece" / "sentencepiece.model")
