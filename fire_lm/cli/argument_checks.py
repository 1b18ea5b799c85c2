"""Checks of parsed arguments."""

from __future__ import annotations

import argparse
import unicodedata
from collections.abc import Iterator, Mapping

from fire_lm.errors import UserError


def check_characters(
    parsed: argparse.Namespace, bindings: list[str], flags: Mapping[str, str]
) -> None:
    """Raise UserError for control characters and for bytes that are not valid UTF-8.

    Line breaks and tabs are allowed in flags that may span several lines. Otherwise, no path or
    value contains such characters on purpose. Without this check, they would cause an error much
    later or garble the output.
    """
    given = [(flags.get(name, name), text) for name, text in texts_of(parsed)]
    given += [(f"--gin.{binding.partition('=')[0]}", binding) for binding in bindings]
    for flag, text in given:
        quoted = ("--also", "--gin.", "--prompt", "--stop")  # These may span several lines.
        allowed = "\n\t" if flag.startswith(quoted) else ""
        for character in text:
            if unicodedata.category(character) in ("Cc", "Cs") and character not in allowed:
                raise UserError(f"{flag} contains the character {character!r}: remove it")


def flags_of(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> dict[str, str]:
    """Return the flag of each argument of the verb in `parsed`, or the word for it in the help."""
    flags: dict[str, str] = {"runs": "RUN", "run": "RUN", "name": "NAME"}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = getattr(parsed, action.dest)
            flags |= flags_of(action.choices[chosen], parsed) if chosen else {}
        elif action.option_strings and action.dest in vars(parsed):
            flags[action.dest] = action.option_strings[-1]
    return flags


def check_not_empty(parsed: argparse.Namespace, flags: Mapping[str, str]) -> None:
    """Raise UserError if an argument is empty, for example because a shell variable is unset.

    An empty path would mean the working directory or the root of the file system.
    """
    for name, text in texts_of(parsed):
        if text == "" and name != "gin_search_paths":
            raise UserError(
                f"{flags.get(name, name)} is empty: give a value (is a shell variable unset?)"
            )


def texts_of(parsed: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each argument, and of each item of a list."""
    for name, value in vars(parsed).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                yield name, text


def check_for_tasks(parsed: argparse.Namespace) -> None:
    """Raise UserError for arguments of `evaluate` that have no effect on downstream tasks."""
    for name in ("positions", "sequences", "output"):
        if getattr(parsed, name) is not None:
            raise UserError(f"--{name} applies only to synthetic tasks: remove it")
