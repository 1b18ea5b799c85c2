"""Training of a lossless SentencePiece vocabulary, whose decoder reproduces the encoded text.

The vocabulary consists of unigram pieces (Kudo 2018). The text is not normalised, and every space
and newline is kept. There is a piece for each of the 256 bytes, so no text is unknown. The only
character that is not reproduced is U+2581, SentencePiece's symbol for a space, which is decoded as
a space.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fire_lm.data import vocabularies
from fire_lm.data.corpora.text_files import OnBytes
from fire_lm.data.on_the_fly import metadata, tasks
from fire_lm.data.quiet_tensorflow import without_their_warnings
from fire_lm.errors import RunFailed, UserError
from fire_lm.storage import Denied, make_folder, place, present, replace_bytes, require_folder

if TYPE_CHECKING:
    from fire_lm.data.kinds import TextData

PAD, EOS, UNK = 0, 1, 2
# The number of special pieces and bytes. A vocabulary must have more pieces, because it also needs
# pieces for characters.
SMALLEST = 3 + 256
_LARGEST = 1_000_000  # SentencePiece's seed_sentencepiece_size
_LONGEST_SENTENCE = 4000  # bytes; longer lines are split, because SentencePiece skips long ones
_VERIFIED = 50  # the number of documents of a data set that are encoded and decoded as a check


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
    """The size of a trained vocabulary in ids, and the numbers of training documents and bytes."""

    size: int
    documents: int
    bytes: int


def train_vocabulary(
    data: Sequence[TextData],
    output: str,
    *,
    size: int,
    megabytes: int,
    split_digits: bool,
    on_bytes: OnBytes,
) -> TrainedVocabulary:
    """Train a vocabulary on the first documents of the training splits and write it.

    These documents are effectively a random sample, because TFDS stores documents in hash order.

    Args:
      data: The data sets, of which only `data_dir` and `tfds_name` are used. The inputs and the
        targets of a task's data set count as documents.
      output: The local or gs:// path of the model to write, which must not exist.
      size: The number of pieces, including 3 special pieces and 256 byte pieces.
      megabytes: The amount of text to read, in equal parts from the data sets; the share that a
        small data set leaves goes to the next ones. SentencePiece needs about twenty times as
        much memory.
      split_digits: Whether every digit is a piece of its own.
      on_bytes: A callback that receives the number of bytes read so far and the total.

    Raises:
      UserError: A data set does not exist, the output exists or cannot be written, or the
        number of pieces is invalid or too large for the text.
      RunFailed: The trained vocabulary does not reproduce the text, or a bucket fails to store it.
    """
    import sentencepiece

    target = place(output)
    if present(target):
        raise UserError(f"{output} already exists: choose another --output, or remove that file")
    _check_size(size)
    require_folder(target.parent, "the folder of --output")
    try:
        make_folder(target.parent)
    except OSError as error:
        raise UserError(f"Cannot write {output}: {error.strerror or error}") from error
    texts = _read(data, megabytes * 10**6, on_bytes)
    everything = [text for of_one in texts for text in of_one]
    read = sum(map(len, everything))
    model = io.BytesIO()
    try:
        with without_their_warnings():
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_sentences(everything),
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
                split_digits=split_digits,
                max_sentence_length=2 * _LONGEST_SENTENCE,
                minloglevel=2,
            )
    except (RuntimeError, OSError) as error:
        why = str(error).strip().split("\n")[-1]
        too_small = "smaller than required_chars" in why  # every character needs a piece
        remedy = "raise --size" if too_small else "reduce --size, or read more text (--megabytes)"
        raise UserError(
            f"Cannot train {size} pieces on {len(everything)} documents ({read / 1e6:.1f} MB): "
            f"{why}\n{remedy}"
        ) from error
    _verify(model.getvalue(), [text for of_one in texts for text in of_one[:_VERIFIED]])
    try:
        replace_bytes(target, model.getvalue())
    except OSError as error:
        raise UserError(f"Cannot write {output}: {error.strerror or error}") from error
    except Denied as error:
        raise UserError(str(error)) from error
    return TrainedVocabulary(vocabularies.load(output).vocab_size, len(everything), read)


def _read(data: Sequence[TextData], limit: int, on_bytes: OnBytes) -> list[list[bytes]]:
    """Return the first documents of each data set, about `limit` bytes in total."""
    texts: list[list[bytes]] = []
    read = 0
    for number, part in enumerate(data, start=1):
        texts.append([])
        for group, _ in tasks.document_groups(part, "train", metadata.text_features(part)):
            texts[-1] += group
            read += sum(map(len, group))
            on_bytes(min(read, limit), limit)
            if read >= limit * number // len(data):
                break
    on_bytes(limit, limit)
    return texts


def _check_size(size: int) -> None:
    """Raise UserError if SentencePiece cannot produce this number of pieces."""
    if size <= SMALLEST:
        raise UserError(
            f"--size {size} is too small: the byte and special pieces take {SMALLEST} ids, and "
            "characters need more"
        )
    if size > _LARGEST:
        raise UserError(
            f"--size {size} is too large: SentencePiece produces at most {_LARGEST:,} pieces"
        )


def _sentences(texts: list[bytes]) -> Iterator[bytes]:
    """Yield the lines of all texts with their indentation, splitting long lines.

    Newlines and NUL characters, which the trainer rejects, are omitted, because byte pieces
    represent both.
    """
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
        expected = text.decode().replace("\u2581", " ")
        if processor.DecodeIds(processor.EncodeAsIds(text.decode())) != expected:
            raise RunFailed(
                "The trained vocabulary does not reproduce the text of a document that begins with "
                f"{text[:60]!r}, so it was not written"
            )
