"""The files of a run, on a disk or in a bucket (gs://), with the same semantics on both.

Buckets have no folders, no renames, no appends and no locks, and the libraries that hide this
report "not found" whatever goes wrong. This package therefore holds the few operations that a run
depends on:

- `presence`: checks whether something exists, and never mistakes an error for absence;
- `objects`: reads and replaces single objects, with the generation as a precondition;
- `files`: reads, replaces, creates (once) and changes (among several writers) whole files;
- `lease`: grants one writer per run directory, and one scorer per checkpoint;
- `appended`: appends to text files.
"""

from fire_lm.storage.appended import Appended, append_to, read_parts
from fire_lm.storage.files import (
    change_text,
    create_text,
    in_bucket,
    make_folder,
    read_bytes,
    remove,
    replace_text,
    tolerating,
)
from fire_lm.storage.lease import Lease, LeaseLost
from fire_lm.storage.places import place, resolved, with_name
from fire_lm.storage.presence import (
    children,
    is_folder,
    present,
    require_bucket,
    require_folder,
)

__all__ = [
    "Appended",
    "Lease",
    "LeaseLost",
    "append_to",
    "change_text",
    "children",
    "create_text",
    "in_bucket",
    "is_folder",
    "make_folder",
    "place",
    "present",
    "read_bytes",
    "read_parts",
    "remove",
    "replace_text",
    "require_bucket",
    "require_folder",
    "resolved",
    "tolerating",
    "with_name",
]
