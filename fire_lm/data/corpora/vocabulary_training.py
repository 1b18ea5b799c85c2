"""A SentencePiece vocabulary that loses nothing: text -> pieces -> the same bytes.

Unigram pieces (Kudo 2018) over text that is not normalised, with every space and newline kept, and
a piece for each of the 256 bytes, so that there is no unknown text. One exception is
SentencePiece's own: U+2581, its sign for a space, comes back as a space.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator

from etils import epath

from fire_lm.data import vocabularies
from fire_lm.data.corpora.text_files import OnBytes
from fire_lm.data.on_the_fly import tasks
from fire_lm.data.quiet_tensorflow import tf, without_their_warnings
from fire_lm.data.spec import TextData
from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import make_folder

PAD, EOS, UNK = 0, 1, 2
# Special pieces and bytes; a vocabulary needs some more for its characters.
SMALLEST = 3 + 256
_LARGEST = 1_000_000  # SentencePiece's seed_sentencepiece_size
_LONGEST_SENTENCE = 4000  # bytes; SentencePiece leaves out longer ones
_VERIFIED = 50  # documents


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
    """Ids in the vocabulary; documents and bytes that it was trained on."""

    size: int
    documents: int
    bytes: int


def train_vocabulary(
    data: TextData, output: str, *, size: int, megabytes: int, on_bytes: OnBytes
) -> TrainedVocabulary:
    """Train on the first documents of the training split, which TFDS has in order of a hash.

    Args:
        data: `data_dir` and `tfds_name`.
        output: the model, a new file, local or gs://.
        size: pieces, of which 259 are bytes and special ones.
        megabytes: of text; SentencePiece needs about twenty times that of memory.
        on_bytes: progress of the reading.

    Raises:
        UserError: no data set, the file exists, or more pieces than the text can fill.
        RunFailed: the trained vocabulary loses text.
    """
    import sentencepiece

    target = epath.Path(output)
    if target.exists():
        raise UserError(f"{output} exists: an existing vocabulary is never overwritten")
    if size <= SMALLEST:
        raise UserError(f"--size {size}: {SMALLEST} ids are bytes and special pieces; give more")
    if size > _LARGEST:
        raise UserError(
            f"--size {size}: SentencePiece makes at most {_LARGEST:,} pieces, which is the number "
            "of candidates that it starts from"
        )
    try:
        make_folder(target.parent)
    except OSError as error:
        raise UserError(f"Cannot write {output}: {error.strerror or error}") from error
    limit = megabytes * 10**6
    texts: list[bytes] = []
    read = 0
    for group, _ in tasks.document_groups(data, "train"):
        texts += group
        read += sum(map(len, group))
        on_bytes(min(read, limit), limit)
        if read >= limit:
            break
    on_bytes(limit, limit)
    model = io.BytesIO()
    try:
        with without_their_warnings():
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sentences(texts),
                model_writer=model,
                vocab_size=size,
                model_type="unigram",
                pad_id=PAD,
                eos_id=EOS,
                unk_id=UNK,
                bos_id=-1,
                byte_fallback=True,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                allow_whitespace_only_pieces=True,
                max_sentence_length=2 * _LONGEST_SENTENCE,
                input_sentence_size=2_000_000,
                shuffle_input_sentence=False,
                minloglevel=2,
            )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[-1]
        raise UserError(
            f"No vocabulary of {size} pieces from {len(texts)} documents, {read / 1e6:.1f} MB: "
            f"{reason}\ngive a smaller --size, or more text (--megabytes)"
        ) from error
    _verify(model.getvalue(), texts[:_VERIFIED])
    try:
        target.write_bytes(model.getvalue())
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"Cannot write {output}: {getattr(error, 'strerror', error)}") from error
    return TrainedVocabulary(vocabularies.load(output).vocab_size, len(texts), read)


def _sentences(texts: list[bytes]) -> Iterator[bytes]:
    """Lines with their indentation, long ones in pieces; NUL, which the trainer refuses, is left
    to the byte pieces, as newlines are."""
    for text in texts:
        for line in text.replace(b"\0", b"").split(b"\n"):
            characters = line.decode()
            step = _LONGEST_SENTENCE // 4
            for start in range(0, len(characters), step):
                yield characters[start : start + step].encode()


def _verify(model: bytes, texts: list[bytes]) -> None:
    import sentencepiece

    with without_their_warnings():
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in texts:
        wanted = text.decode().replace("\u2581", " ")
        if processor.DecodeIds(processor.EncodeAsIds(text.decode())) != wanted:
            raise RunFailed(f"The vocabulary loses text, for instance of {text[:60]!r}")
