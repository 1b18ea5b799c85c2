"""Checks of arguments after they are parsed."""

from __future__ import annotations

import argparse
import unicodedata

from fire_lm.errors import UserError


def check_characters(parsed: argparse.Namespace, bindings: list[str]) -> None:
    """Raise UserError for control characters, and for bytes that are not UTF-8.

    No path or value contains them on purpose. They fail late, or in the middle of a printed line.
    """
    given = [(_flag(name), value) for name, value in vars(parsed).items()]
    given += [(f"--gin.{name}", binding) for binding in bindings for name in [_name(binding)]]
    for flag, value in given:
        quoted = ("--also", "--gin.", "--prompt", "--stop")  # these may span several lines
        allowed = "\n\t" if flag.startswith(quoted) else ""
        for text in value if isinstance(value, list) else [value]:
            for character in text if isinstance(text, str) else "":
                if unicodedata.category(character) in ("Cc", "Cs") and character not in allowed:
                    raise UserError(f"{flag} contains the character {character!r}: remove it")


def _flag(name: str) -> str:
    """Return the flag of an argument on the command line."""
    return {"runs": "RUN", "source": "--from"}.get(name, f"--{name}")


def _name(binding: str) -> str:
    return binding.partition("=")[0]


def check_not_empty(parsed: argparse.Namespace) -> None:
    """Raise UserError for an argument without a value, such as an unset shell variable leaves.

    An empty path would be the working directory, or the root of the file system.
    """
    for name, value in vars(parsed).items():
        for one in value if isinstance(value, list) else [value]:
            if one == "" and name != "gin_search_paths":
                raise UserError(f"{_flag(name)} is empty: is a shell variable unset?")
