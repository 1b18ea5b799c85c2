"""The construction of `tokenizer.json` (Hugging Face tokenizers) from the vocabulary of a run.

The tokenizer prepends token 0 to each text and otherwise encodes text as the run does. Text that
spells a control piece, such as `</s>`, remains text. If a SentencePiece model normalises text
(NFKC), the library `tokenizers` assigns other ids in two cases. It normalises grapheme clusters of
six bytes or more one character at a time, so it does not compose decomposed Hangul, or half-width
kana followed by a sound mark. It also treats a space followed by a combining mark as one character.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fire_lm.data import Tokenized
from fire_lm.data.hub_vocabulary import PREFIX, SHIFT, load_hub, read_tokenizer
from fire_lm.errors import UserError
from fire_lm.storage import read_bytes

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # represents a space in SentencePiece
# The score of a control piece. It is lower than all other scores, as in T5X and transformers.
_NEVER = -1e4

Json = dict[str, Any]


def tokenizer_files(data: Tokenized, mask_id: int | None = None) -> dict[str, Json]:
    """Return the contents of `tokenizer.json` and `tokenizer_config.json` by file name.

    Args:
      data: The data with the vocabulary of the run.
      mask_id: The id of the token that hides tokens from a masked language model, if there is one.

    Raises:
      UserError: The vocabulary is missing or is of a kind that cannot be exported.
    """
    if data.vocabulary == "bytes":
        specials, parts = [(0, "<pad>"), (1, "</s>"), (2, "<unk>")], _bytes()
    elif data.vocabulary.startswith(PREFIX):
        specials, parts = _shifted(data.vocabulary)
    else:
        specials, parts = _sentencepiece(data.vocabulary)
    start, end, unknown = (text for _, text in specials)
    added = sorted(dict.fromkeys(specials))
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(number, text) for number, text in added],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special(start, 0), _sequence("A", 0)],
            "pair": [_special(start, 0), _sequence("A", 0), _sequence("B", 1)],
            "special_tokens": {start: {"id": start, "ids": [0], "tokens": [start]}},
        },
        **parts,
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": start,
        "pad_token": start,
        "eos_token": end,
        "unk_token": unknown,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    if mask_id is not None:
        # An encoder reads a row of text as it is, and token 0 only as padding.
        tokenizer["post_processor"] = None
        del config["bos_token"]
        mask = _unused("<mask>", tokenizer)
        tokenizer["added_tokens"].append(_added(mask_id, mask))
        config["mask_token"] = mask
        _check_mask(mask_id, tokenizer)
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


def _check_mask(mask_id: int, tokenizer: Json) -> None:
    """Raise UserError unless the tokenizers library, which numbers new tokens, gives this id."""
    vocab, others = tokenizer["model"]["vocab"], tokenizer["added_tokens"][:-1]
    last = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
    free = 1 + max([last, *(token["id"] for token in others)])
    if mask_id != free:
        raise UserError(
            f"the mask token of this run is {mask_id}, but in an exported tokenizer it would be "
            f"{free}: vocabularies with extra ids or gaps cannot be exported with a mask token"
        )


def _unused(text: str, tokenizer: Json) -> str:
    """Return `text`, in more angle brackets if the tokenizer already has a token of that name."""
    vocab = tokenizer["model"]["vocab"]
    taken = {token["content"] for token in tokenizer.get("added_tokens") or ()}
    taken |= set(vocab) if isinstance(vocab, dict) else {piece for piece, _ in vocab}
    while text in taken:
        text = f"<{text}>"
    return text


def _added(number: int, text: str) -> Json:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": True}


def _special(text: str, kind: int) -> Json:
    return {"SpecialToken": {"id": text, "type_id": kind}}


def _sequence(name: str, kind: int) -> Json:
    return {"Sequence": {"id": name, "type_id": kind}}


def _bytes() -> Json:
    """Return the tokenizer parts of seqio's byte vocabulary, in which byte b has id b + 3."""
    vocab = {"<pad>": 0, "</s>": 1, "<unk>": 2}
    vocab |= {character: byte + 3 for byte, character in _printable().items()}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": _bpe(vocab, [], byte_fallback=False, unknown=None),
    }


def _printable() -> dict[int, str]:
    """Return GPT-2's table of the characters that represent bytes in byte-level vocabularies."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    table = {byte: chr(byte) for byte in own}
    return table | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _bpe(
    vocab: Mapping[str, int], merges: Sequence[list[str]], byte_fallback: bool, unknown: str | None
) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": dict(vocab),
        "merges": list(merges),
    }


def _shifted(name: str) -> tuple[list[tuple[int, str]], Json]:
    """Return the special tokens and the parts of the tokenizer of a Hugging Face folder.

    The ids are ours, which are one higher. The added tokens are kept; the run reads special added
    tokens as text, and other added tokens as tokens.
    """
    content, hub = read_tokenizer(name), load_hub(name)
    model, vocab = dict(content["model"]), content["model"]["vocab"]
    added = [token | {"id": token["id"] + SHIFT} for token in content.get("added_tokens") or ()]
    padding = _unused("<pad>", content)
    if isinstance(vocab, dict):
        shifted = {piece: number + SHIFT for piece, number in vocab.items()}
        model["vocab"] = {padding: 0, **shifted}
    else:
        model["vocab"] = [[padding, _NEVER], *vocab]
        if model.get("unk_id") is not None:
            model["unk_id"] += SHIFT
    added.insert(0, _added(0, padding))
    by_id = {token["id"]: token["content"] for token in added}
    end = (hub.end_of_document, hub.end_token)
    if end[0] not in by_id:
        added.append(_added(*end))
    unknown = hub.unknown_id if hub.unknown_id in by_id else None
    specials = [(0, padding), end, end if unknown is None else (unknown, by_id[unknown])]
    parts = {part: content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}
    return specials, {**parts, "model": model, "added_tokens": added}


def _sentencepiece(path: str) -> tuple[list[tuple[int, str]], Json]:
    """Return the special pieces and the tokenizer parts of a SentencePiece model.

    The special pieces represent the beginning of a text, the end of a document, and unknown
    characters.
    """
    from sentencepiece import sentencepiece_model_pb2

    content = read_bytes(path)
    if content is None:
        raise UserError(f"there is no vocabulary file {path}")
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    trained = model.trainer_spec
    specials = [
        (number, model.pieces[number].piece) for number in (0, trained.eos_id, trained.unk_id)
    ]
    if trained.model_type == trained.UNIGRAM:
        return specials, _unigram(model)
    if trained.model_type == trained.BPE:
        return specials, _merged(model)
    raise UserError(
        f"{path} is neither a unigram nor a BPE vocabulary: other kinds cannot be exported"
    )


def _unigram(model: Any) -> Json:
    """Return the tokenizer parts of a unigram model.

    Like SentencePiece, the tokenizer normalises text, collapses spaces and prepends a space, if the
    settings of the model require these steps.
    """
    ordinary = model.SentencePiece.NORMAL, model.SentencePiece.USER_DEFINED
    vocab = [
        [piece.piece, piece.score if piece.type in ordinary else _NEVER] for piece in model.pieces
    ]
    never = [piece.piece for piece in model.pieces if piece.type not in ordinary]
    splits = _splits(never, {piece.piece for piece in model.pieces if piece.type in ordinary})
    spec, steps = model.normalizer_spec, _normalizers(model.normalizer_spec)
    spaces = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "always" if spec.add_dummy_prefix else "never",
        "split": False,
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [spaces, *splits]},
        "decoder": _joined_pieces(spec) if model.trainer_spec.byte_fallback else spaces,
        "model": {
            "type": "Unigram",
            "unk_id": model.trainer_spec.unk_id,
            "vocab": vocab,
            "byte_fallback": model.trainer_spec.byte_fallback,
        },
    }


def _splits(never: Sequence[str], ordinary: Collection[str]) -> list[Json]:
    """Return pre-tokenizers that prevent text from being encoded as one of the pieces `never`.

    The low score of such a piece does not suffice, because an unknown character has an even lower
    score. Text that spells the piece is therefore split next to an unknown character. No other
    piece contains that character, so the encoding of other text does not change. A piece without
    unknown characters needs no split.
    """
    rests: dict[str, list[str]] = {}
    for piece in never:
        known = [character in ordinary for character in piece]
        cuts = (at for at in range(1, len(piece)) if known[at - 1] != known[at])
        # A piece of unknown characters is encoded as bytes, which a split does not change.
        at = next(cuts, 0 if any(known) else 1)
        if at:
            rests.setdefault(piece[:at], []).append(re.escape(piece[at:]))
    return [
        {
            "type": "Split",
            "pattern": {"Regex": f"{re.escape(start)}(?={'|'.join(ends)})"},
            "behavior": "MergedWithPrevious",
            "invert": False,
        }
        for start, ends in rests.items()
    ]


def _normalizers(spec: Any) -> list[Json]:
    steps: list[Json] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps


def _merged(model: Any) -> Json:
    """Return the tokenizer parts of a BPE model.

    SentencePiece stores the order of merges in the scores of the merged pieces.
    """
    vocab = {piece.piece: number for number, piece in enumerate(model.pieces)}
    pairs = []
    for piece in model.pieces:
        for place in range(1, len(piece.piece)):
            left, right = piece.piece[:place], piece.piece[place:]
            if left in vocab and right in vocab:
                pairs.append((-piece.score, vocab[left], vocab[right], [left, right]))
    merges = [pair for *_, pair in sorted(pairs, key=lambda merge: merge[:3])]
    spec, steps = model.normalizer_spec, _normalizers(model.normalizer_spec)
    if spec.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": _SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
    unknown = model.pieces[model.trainer_spec.unk_id].piece
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _joined_pieces(spec),
        "model": _bpe(vocab, merges, model.trainer_spec.byte_fallback, unknown),
    }


def _joined_pieces(spec: Any) -> Json:
    """Return a decoder that joins pieces, including those of single bytes, into one text."""
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spec.add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}
