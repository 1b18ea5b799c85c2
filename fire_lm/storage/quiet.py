"""C++ libraries loaded without the log lines that they write to stderr before any setting counts.

File descriptor 2 goes to a temporary file meanwhile; whatever in it is no such line is passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_LOG_LINE = re.compile(rb"WARNING: All log messages before absl|[IWE]\d{4} \d\d:|[IWE]\d{4} \d{8,}")


@contextlib.contextmanager
def without_log_lines() -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)
