"""The argument parser that all verbs use, and converters for argument values."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from fire_lm.errors import UserError, nearest


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats descriptions as they are written, and adds the defaults that a help text omits."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        lacks = "default" not in (action.help or "") and action.default is not argparse.SUPPRESS
        return f"{action.help} (default: %(default)s)" if lacks and action.default else action.help


class Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any):
        settings.setdefault("formatter_class", _Formatter)
        # An abbreviation such as --allow must not be taken for --allow_config_change.
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"(\w+): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = [name.strip(" '") for name in wrong[3].split(",")]
            if near := nearest(wrong[2], known):
                raise UserError(f"there is no {wrong[1]} {wrong[2]!r}: did you mean {near}?")
        raise UserError(f"{message}\n`{self.prog} --help` lists all arguments")


def number(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"'{text:.20}' is not a whole number of {least} or more")
    if len(text) > 18 or int(text) >= 2**31:  # Settings are int32.
        raise argparse.ArgumentTypeError(f"{text[:20]} is too large: it must be less than {2**31}")
    return int(text)


def ranges(text: str) -> tuple[int, ...]:
    """Parse numbers and inclusive ranges, such as `1-40,50`; return sorted, distinct numbers."""
    values: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if dash and not last:
            raise argparse.ArgumentTypeError(f"'{part:.20}' is not a range such as 1-500")
        low, high = number(first), number(last or first)
        if low > high or high - low >= 100_000:
            raise argparse.ArgumentTypeError(
                f"'{part:.20}' is not a range of at most 100,000 numbers, such as 1-500"
            )
        values |= set(range(low, high + 1))
    return tuple(sorted(values))


def three_numbers(text: str) -> tuple[int, int, int]:
    if len(parts := text.split("x")) != 3:
        raise argparse.ArgumentTypeError(f"'{text:.20}' is not of the form BATCHxPROMPTxNEW")
    batch, prompt, new_tokens = map(number, parts)
    return batch, prompt, new_tokens


def seed(text: str) -> int:
    return number(text, least=0)


def split_rule(text: str) -> str | int:
    return int(text) if text.isascii() and text.isdigit() else text


def numbers(text: str) -> list[int]:
    return [number(part) for part in names(text)]


def names(text: str) -> list[str]:
    """Parse comma-separated names. None may be empty, which would select the default."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError("a name or number is empty")
    return parts


def names_or_none(text: str) -> list[str]:
    return names(text) if text.strip() else []


def numbers_or_none(text: str) -> list[int]:
    return numbers(text) if text.strip() else []
