"""Files of a run, on a disk or in a bucket (gs://), with the same meaning on both.

Buckets have no folders, no renames, no appends and no locks, and the libraries that hide this
answer "not there" for whatever goes wrong. So the few operations that a run depends on are here:

- `presence`: what is there and what is not, where an error is never taken for absence;
- `objects`: reading and replacing one object, with the generation as a precondition;
- `lease`: one writer for a run directory, a checkpoint that is scored, a table;
- `appended`: text files that grow.
"""

from fire_lm.storage.appended import append_to, cut_back, read_parts
from fire_lm.storage.files import (
    create_text,
    in_bucket,
    make_folder,
    read_bytes,
    remove,
    replace_text,
    tolerating,
)
from fire_lm.storage.lease import Lease, locked
from fire_lm.storage.presence import children, present, require_bucket, require_folder

__all__ = [
    "Lease",
    "append_to",
    "children",
    "create_text",
    "cut_back",
    "in_bucket",
    "locked",
    "make_folder",
    "present",
    "read_bytes",
    "read_parts",
    "remove",
    "replace_text",
    "require_bucket",
    "require_folder",
    "tolerating",
]
