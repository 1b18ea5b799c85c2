"""`tokenizer.json` of Hugging Face's tokenizers library for the vocabulary of a run.

Encoding is that of the run, after token 0, which begins a text here; a text that spells a control
piece, such as `</s>`, stays text. One difference is the library's: where a SentencePiece model
normalises (NFKC), tokenizers does so character by character for sequences of six bytes or more, so
that decomposed Hangul and half-width kana with a sound mark are not composed, and it takes a space
with a combining mark for one character.
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

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # as SentencePiece writes a space
# As T5X and transformers have it: the score of a control piece, below all others.
_NEVER = -1e4

Json = dict[str, Any]


def tokenizer_files(data: Tokenized) -> dict[str, Json]:
    """`tokenizer.json` and `tokenizer_config.json`, by name.

    Raises:
      UserError: the vocabulary is missing, or of a kind that tokenizers does not have.
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
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config}


def _added(number: int, text: str) -> Json:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": True}


def _special(text: str, kind: int) -> Json:
    return {"SpecialToken": {"id": text, "type_id": kind}}


def _sequence(name: str, kind: int) -> Json:
    return {"Sequence": {"id": name, "type_id": kind}}


def _bytes() -> Json:
    """seqio's byte vocabulary: byte b is id b + 3."""
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
    """The character that stands for each byte in byte-level vocabularies: GPT-2's table."""
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
    """`hf:FOLDER`: the folder's own, with our ids, one higher. Of its added tokens, the one that
    ends a document stays special; the others were text for the run and are left out."""
    content, hub = read_tokenizer(name), load_hub(name)
    model, padding = dict(content["model"]), "<pad>"
    while padding in (model["vocab"] if isinstance(model["vocab"], dict) else ()):
        padding = f"<{padding}>"
    if isinstance(model["vocab"], dict):
        shifted = {piece: number + SHIFT for piece, number in model["vocab"].items()}
        model["vocab"] = {padding: 0, **shifted}
    else:
        model["vocab"] = [[padding, _NEVER], *model["vocab"]]
        if model.get("unk_id") is not None:
            model["unk_id"] += SHIFT
    specials = [(0, padding), (hub.end_of_document, hub.end_token)]
    if model.get("unk_token") not in (None, "", hub.end_token):
        specials.append((hub.unknown_id or 0, model["unk_token"]))
    else:
        specials.append((hub.end_of_document, hub.end_token))
    parts = {part: content.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}
    return specials, {**parts, "model": model}


def _sentencepiece(path: str) -> tuple[list[tuple[int, str]], Json]:
    """The special pieces (begin of text, end of document, unknown), and the tokenizer's parts."""
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
    raise UserError(f"{path}: only unigram and BPE vocabularies have a form in tokenizers")


def _unigram(model: Any) -> Json:
    """A unigram model as sentencepiece reads it: normalised, spaces collapsed, one put first."""
    ordinary = model.SentencePiece.NORMAL, model.SentencePiece.USER_DEFINED
    vocab = [[one.piece, one.score if one.type in ordinary else _NEVER] for one in model.pieces]
    never = [one.piece for one in model.pieces if one.type not in ordinary]
    splits = _splits(never, {one.piece for one in model.pieces if one.type in ordinary})
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
    """Keep the pieces `never` out of text, in which an unknown character costs more than they do.

    Each is cut beside an unknown character, which is in no other piece, so that nothing else
    changes; a piece without one needs no cut.
    """
    rests: dict[str, list[str]] = {}
    for piece in never:
        known = [character in ordinary for character in piece]
        cuts = (at for at in range(1, len(piece)) if known[at - 1] != known[at])
        # A piece of unknown characters alone becomes bytes, which no cut changes.
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
    """BPE, whose merges sentencepiece keeps as the scores of what they make."""
    vocab = {one.piece: number for number, one in enumerate(model.pieces)}
    found = []
    for one in model.pieces:
        for place in range(1, len(one.piece)):
            left, right = one.piece[:place], one.piece[place:]
            if left in vocab and right in vocab:
                found.append((-one.score, vocab[left], vocab[right], [left, right]))
    merges = [pair for *_, pair in sorted(found, key=lambda merge: merge[:3])]
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
    """Pieces of text and pieces of single bytes, as one text."""
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if spec.add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}
