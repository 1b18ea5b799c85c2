"""Checks of arguments once they are parsed."""

from __future__ import annotations

import argparse
import unicodedata

from fire_lm.errors import UserError


def check_characters(parsed: argparse.Namespace, bindings: list[str]) -> None:
    """Raises UserError for control characters, and for bytes that are no UTF-8: no path or value
    has them on purpose, and they fail late, or in the middle of a line that is printed."""
    given = [(_flag(name), value) for name, value in vars(parsed).items()]
    given += [(f"--gin.{name}", binding) for binding in bindings for name in [_name(binding)]]
    for flag, value in given:
        quoted = ("--also", "--gin.", "--prompt", "--stop")  # over several lines
        allowed = "\n\t" if flag.startswith(quoted) else ""
        for text in value if isinstance(value, list) else [value]:
            for character in text if isinstance(text, str) else "":
                if unicodedata.category(character) in ("Cc", "Cs") and character not in allowed:
                    raise UserError(f"{flag} holds the character {character!r}: remove it")


def _flag(name: str) -> str:
    """The flag of an argument on the command line."""
    return {"runs": "RUN", "source": "--from"}.get(name, f"--{name}")


def _name(binding: str) -> str:
    return binding.partition("=")[0]


def check_not_empty(parsed: argparse.Namespace) -> None:
    """Raises UserError for an argument without a value, as of a shell variable that is not set. An
    empty path would be the working directory, or the root of the file system."""
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list) else [value]:
            if one == "" and name != "gin_search_paths":
                raise UserError(f"{_flag(name)} is empty: is a shell variable not set?")
