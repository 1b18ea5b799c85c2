"""Validated seqio vocabularies, and tokenisers that count the bytes each token represents."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from fire_lm.data.hub_vocabulary import PREFIX, HubVocabulary, load_hub
from fire_lm.data.quiet_tensorflow import seqio, tf, without_their_warnings
from fire_lm.errors import FireLMError, RunFailed, UserError, reason

# SentencePiece's built-in normalisation rules.
_STANDARD_NORMALIZERS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
# Matches pieces with at most one word, which may follow spaces (U+2581 in SentencePiece).
_OF_ONE_WORD = re.compile("\N{LOWER ONE EIGHTH BLOCK}*[^ \N{LOWER ONE EIGHTH BLOCK}]*")

# A function that maps strings [documents] to their tokens and to the number of bytes of each token,
# both ragged int32 [documents, tokens].
Tokenize = Callable[[tf.Tensor], tuple[tf.RaggedTensor, tf.RaggedTensor]]


class HubSeqioVocabulary(seqio.Vocabulary):
    """A seqio vocabulary that wraps a vocabulary `hf:FOLDER`.

    It is slower than the other vocabularies, because TensorFlow has to call Python.
    """

    def __init__(self, of: HubVocabulary):
        super().__init__()
        self.of = of

    @property
    def bos_id(self) -> int | None:
        return None

    @property
    def eos_id(self) -> int:
        return self.of.end_of_document

    @property
    def unk_id(self) -> int | None:
        return self.of.unknown_id

    @property
    def _base_vocab_size(self) -> int:
        return self.of.size

    def _encode(self, s: str) -> list[int]:
        return self.of.encode(s).tolist()

    def _decode(self, ids: Iterable[int]) -> str:
        return self.of.decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return _hub_tokens(self.of, tf.reshape(s, [1]))[0].flat_values

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(lambda row: self.of.decode(row.tolist()), [ids], tf.string)


@functools.lru_cache(maxsize=8)
def load(name: str) -> seqio.Vocabulary:
    """Load a vocabulary by its name; see `TextData.vocabulary`.

    Raises:
      UserError: The file is missing, is not a SentencePiece model, has no end-of-document piece,
        or could produce id 0, which fire_lm uses for padding.
      RunFailed: The bucket of the file does not answer.
    """
    if name == "bytes":
        return seqio.ByteVocabulary()
    if name.startswith(PREFIX):
        return HubSeqioVocabulary(load_hub(name))
    try:
        exists = tf.io.gfile.exists(name) and not tf.io.gfile.isdir(name)
    except tf.errors.OpError as error:
        raise _inaccessible(name, error) from error
    if not exists:
        raise UserError(
            f"Vocabulary file not found: {name}\n"
            "TextData.vocabulary must be 'bytes', the path of a SentencePiece model, or hf:FOLDER"
        )
    vocabulary = seqio.SentencePieceVocabulary(name)
    try:
        with without_their_warnings():
            processor = vocabulary.tokenizer
        pieces = processor.GetPieceSize()
    except tf.errors.OpError as error:
        raise _inaccessible(name, error) from error
    except Exception as error:  # protobuf and SentencePiece errors share no base class
        raise UserError(f"Not a SentencePiece model: {name}") from error
    if pieces == 0:
        raise UserError(f"Not a SentencePiece model: {name}")
    _check_special_pieces(name, processor)
    return vocabulary


# The errors that TensorFlow raises for 503 or 429 responses and for connections that fail.
_PASSING = (tf.errors.AbortedError, tf.errors.UnavailableError, tf.errors.DeadlineExceededError)


def _inaccessible(name: str, error: tf.errors.OpError) -> FireLMError:
    kind = RunFailed if isinstance(error, _PASSING) else UserError
    return kind(f"Cannot access the vocabulary {name}: {reason(error)}")


def _check_special_pieces(name: str, processor) -> None:
    if processor.eos_id() <= 0:
        raise UserError(
            f"The SentencePiece model {name} has no end-of-document piece above id 0\n"
            "Train it with --pad_id=0 --eos_id=1 --unk_id=2"
        )
    byte_fallback = any(processor.IsByte(i) for i in range(processor.GetPieceSize()))
    never_emitted = processor.IsControl(0) or (processor.IsUnknown(0) and byte_fallback)
    if not never_emitted:
        raise UserError(
            f"The SentencePiece model {name} can emit id 0, which is padding in fire_lm\n"
            "Train it with --pad_id=0 --eos_id=1 --unk_id=2"
        )


def divides_at_spaces(vocabulary: seqio.Vocabulary) -> bool:
    """Return whether the tokens of 'a b' begin with the tokens of 'a'.

    This holds for bytes, and for a SentencePiece model whose pieces never continue after a space
    (except with further spaces) and whose normalisation rule is built in. The built-in rules do not
    change ASCII letters and digits. Here, 'a' is any text that ends in an ASCII letter or digit,
    and 'b' is any text that begins with one.
    """
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return True
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return False
    model = ModelProto.FromString(vocabulary.tokenizer.serialized_model_proto())
    return (
        model.normalizer_spec.name in _STANDARD_NORMALIZERS
        and model.normalizer_spec.escape_whitespaces
        and not model.trainer_spec.treat_whitespace_as_suffix
        and all(_OF_ONE_WORD.fullmatch(piece.piece) for piece in model.pieces)
    )


def unknown_id(name: str) -> int | None:
    """Return the id that the vocabulary assigns to unknown text, or None if there is no such id."""
    if name == "bytes":
        return None
    # An unknown id of 0, which is padding in fire_lm, is never produced, because unknown text
    # becomes byte pieces instead (`load` checks this).
    return load(name).unk_id or None


def tokenizer(vocabulary: seqio.Vocabulary) -> Callable[[tf.Tensor], tf.RaggedTensor]:
    """Return a function that maps strings [documents] to ragged int32 [documents, tokens].

    The tokens do not include an end-of-document token.
    """
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return lambda text: _bytes(text)[0]
    if isinstance(vocabulary, HubSeqioVocabulary):
        return lambda text: _hub_tokens(vocabulary.of, text)[0]
    return vocabulary.tf_tokenizer.tokenize


def tokenizer_with_byte_counts(vocabulary: seqio.Vocabulary) -> Tokenize:
    """Return a tokeniser like `tokenizer` that also returns the number of bytes of each token.

    The byte counts of a document with tokens sum to its size.
    """
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return _bytes
    if isinstance(vocabulary, HubSeqioVocabulary):
        return functools.partial(_hub_tokens, vocabulary.of)
    sentencepiece = vocabulary.tf_tokenizer

    def tokenize(text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        tokens, starts, _ = sentencepiece.tokenize_with_offsets(text)
        # A token covers all bytes from its start to the start of the next token, and the first
        # token also covers any bytes before its start, so white space that the model drops is
        # counted too.
        starts = tf.cast(starts, tf.int32)
        lengths = tf.expand_dims(tf.strings.length(text), 1)
        # A document without tokens has no first token, so nothing may be counted for it.
        ends = tf.ragged.boolean_mask(lengths, tf.expand_dims(tokens.row_lengths() > 0, 1))
        edges = tf.concat([tf.zeros_like(lengths), starts[:, 1:], ends], axis=1)
        return tokens, edges[:, 1:] - edges[:, :-1]

    return tokenize


def _bytes(text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    joined = tf.strings.reduce_join(text)
    ids = tf.cast(tf.io.decode_raw(joined, tf.uint8), tf.int32) + 3
    tokens = tf.RaggedTensor.from_row_lengths(ids, tf.strings.length(text))
    return tokens, tf.ones_like(tokens)


def _hub_tokens(of: HubVocabulary, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Return the id of each token and the number of bytes it represents, [documents, tokens]."""
    kinds = (tf.int32, tf.int32, tf.int64)
    ids, counts, lengths = tf.numpy_function(of.encode_documents, [text], kinds)
    for flat in (ids, counts, lengths):
        flat.set_shape([None])
    tokens = tf.RaggedTensor.from_row_lengths(ids, lengths)
    return tokens, tokens.with_flat_values(counts)
