"""Files of results to which process 0 of a job appends lines, none of which may be lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.processes import by_first
from fire_lm.storage import Appended, append_to, make_folder


def whole_lines(content: bytes) -> bytes:
    """Return the content without a last line that an interrupted write left incomplete."""
    return content[: content.rfind(b"\n") + 1]


@contextlib.contextmanager
def appended_lines(path: epath.Path) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends a line to a file; on processes other than 0, it does nothing.

    All processes must enter the block. An incomplete last line in the file is removed first.

    Raises:
      RunFailed: The file cannot be written, or lines could not be uploaded by the end of the block.
    """
    files: list[Appended] = []  # contains one file on process 0 and none on the others

    def open_file() -> None:
        make_folder(path.parent)
        files.append(append_to(path, whole_lines, in_parts=False, required=True))

    def close() -> None:
        for file in files:
            file.close()

    by_first(open_file)
    try:
        yield files[0].append if files else lambda line: None
    except BaseException:
        try:
            close()
        except RunFailed as lost:  # but the first error is the cause
            print(lost, file=sys.stderr)
        raise
    by_first(close)
