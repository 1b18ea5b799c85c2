"""Needle retrieval as in RULER (Hsieh et al. 2024, arXiv:2404.06654): find values by key."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, get_args, get_type_hints

import numpy as np

from fire_lm.errors import UserError
from fire_lm.tasks.synthetic.haystack import (
    DIGITS,
    HYPHEN,
    distinct_words,
    filler,
    prompt,
    random_bytes,
    random_uuid,
    symbols_of,
)
from fire_lm.tasks.synthetic.task import Sample, Task

_NEEDLE = b"One of the special magic %s for %s is: %s. "
_QUESTION = b"What are the special magic %s for %s? They are "
_UUID_LENGTH = 36
_KNOWN = (8, 13, 14, 18, 19, 23)  # the hyphens, the version and the variant of a UUID


@dataclasses.dataclass(frozen=True)
class Needles(Task):
    """The task of finding the values that hidden sentences assign to keys.

    The input is a text of `length` bytes that hides the sentences and ends with a question about
    some of the keys. The answer consists of the values of the first requested key, in the order of
    the text, then those of the next key, and so on. The hyphens of UUIDs, and the digits of their
    version and variant, do not count towards the accuracy, because they are known. RULER's single,
    multi-key, multi-value and multi-query needles are (keys, values, queries) = (1, 1, 1), (4, 1,
    1), (1, 4, 1) and (4, 1, 4). Its third single form has `value_type = "uuids"`; its second and
    third multi-key forms have `haystack = "needles"`, and the third has UUIDs as keys and values.

    Attributes:
      keys: The number of keys, besides those of other sentences in a haystack of needles.
      values: How many values each of these keys has.
      queries: The number of requested keys.
      haystack: What surrounds the sentences. 'text' is noise sentences or a file; 'needles' is as
        many sentences of the same form, with other keys, as there is room for.
      text: The local file whose text hides the sentences; '' uses noise sentences.
      key_type: 'words', which are random letters, or 'uuids'.
      value_type: 'numbers' or 'uuids'.
      digits, letters: The number of digits in a number, and of letters in a word.
    """

    keys: int = 1
    values: int = 1
    queries: int = 1
    text: str = ""
    digits: int = 7
    letters: int = 6
    haystack: Literal["text", "needles"] = "text"
    key_type: Literal["words", "uuids"] = "words"
    value_type: Literal["numbers", "uuids"] = "numbers"
    input_symbols = 256
    paths: ClassVar[dict[str, str]] = {"text": "text"}
    least = {"digits": 1, "letters": 1}

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= self.keys or self.values < 1:
            raise UserError(
                f"Needles has keys = {self.keys}, values = {self.values} and queries = "
                f"{self.queries}: queries must be from 1 to keys, and values must be 1 or more"
            )
        for name in ("haystack", "key_type", "value_type"):
            options = get_args(get_type_hints(Needles)[name])
            if getattr(self, name) not in options:
                raise UserError(
                    f"Needles.{name} is {getattr(self, name)!r}: it must be one of {options}"
                )
        if self.text and self.haystack == "needles":
            raise UserError("Needles.text has no use if haystack = 'needles': omit one of the two")

    @property
    def answer_symbols(self) -> int:
        return 10 if self.value_type == "numbers" else HYPHEN + 1

    @property
    def _key_length(self) -> int:
        return self.letters if self.key_type == "words" else _UUID_LENGTH

    @property
    def _value_length(self) -> int:
        return self.digits if self.value_type == "numbers" else _UUID_LENGTH

    def _needle(self, key: bytes, value: bytes) -> bytes:
        return _NEEDLE % (self.value_type.encode(), key, value)

    def _question(self, keys: list[bytes]) -> bytes:
        return _QUESTION % (self.value_type.encode(), b", ".join(keys))

    @property
    def _needle_length(self) -> int:
        return len(self._needle(b"k" * self._key_length, b"v" * self._value_length))

    @property
    def shortest(self) -> int:
        question = self._question([b"k" * self._key_length] * self.queries)
        return self.keys * self.values * self._needle_length + len(question)

    def answer_length(self, length: int) -> int:
        return self.queries * self.values * self._value_length

    def counted(self, answer: np.ndarray) -> np.ndarray:
        place = np.arange(answer.shape[-1]) % _UUID_LENGTH
        unknown = ~np.isin(place, _KNOWN) if self.value_type == "uuids" else True
        return super().counted(answer) & unknown

    def sample(self, rng: np.random.Generator, length: int) -> Sample:
        others = 0
        if self.haystack == "needles":
            others = (length - self.shortest) // self._needle_length
        keys = self._draw_keys(rng, self.keys + others)
        counts = [self.values] * self.keys + [1] * others
        owners = rng.permutation(np.repeat(np.arange(len(keys)), counts))
        values = [self._draw_value(rng) for _ in owners]
        needles = [self._needle(keys[key], v) for key, v in zip(owners, values, strict=True)]
        question = self._question(keys[: self.queries])
        if self.haystack == "needles":
            room = length - len(question) - len(needles) * self._needle_length
            text = filler(rng, "", room) + b"".join(needles) + question
        else:
            text = prompt(rng, self.text, needles, question, length)
        answers = [values[i] for key in range(self.queries) for i in np.flatnonzero(owners == key)]
        return Sample(symbols_of(text), symbols_of(b"".join(answers)))

    def _draw_keys(self, rng: np.random.Generator, count: int) -> list[bytes]:
        if self.key_type == "words":
            return distinct_words(rng, count, self.letters)
        return [random_uuid(rng) for _ in range(count)]  # Two equal ones do not occur in practice.

    def _draw_value(self, rng: np.random.Generator) -> bytes:
        if self.value_type == "numbers":
            return random_bytes(rng, DIGITS, self.digits)
        return random_uuid(rng)
