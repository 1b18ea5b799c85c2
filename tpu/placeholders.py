"""The words that our pages and files write where users put names of their own."""

from __future__ import annotations

import re

from fire_lm.errors import UserError

_MEANINGS = {
    "BUCKET": "the name of your bucket",
    "PROJECT": "the id of your Google Cloud project",
    "REGION": "the region of your TPUs, such as us-central2",
    "REPOSITORY": "the name of your Artifact Registry repository",
}
_PLACEHOLDER = re.compile(rf"(?<![A-Z0-9_])(?:YOUR_)?({'|'.join(_MEANINGS)})(?![A-Z0-9_])")


def check_filled_in(name: str, value: str) -> None:
    """Raise UserError if a value still contains a placeholder."""
    found = {match[0]: _MEANINGS[match[1]] for match in _PLACEHOLDER.finditer(value)}
    if found:
        instead = ", and ".join(f"{word} by {meaning}" for word, meaning in found.items())
        raise UserError(f"{name} is {value}: replace {instead}")


def check_arguments(arguments: list[str]) -> None:
    """Raise UserError if a gs:// path on the command line still contains a placeholder."""
    for argument in arguments:
        if "gs://" in argument:
            flag, _, value = argument.partition("=")
            check_filled_in(*((flag, value) if flag.startswith("--") else ("RUN", argument)))
