"""Access to the files of a run, with the same semantics on a disk and in a bucket (gs://).

Buckets have no folders, renames, appends or locks, and the libraries that hide these differences
report "not found" for any kind of failure. This package therefore implements the few operations on
which a run depends:

- `presence`: checks whether files and folders exist, and never mistakes an error for absence;
- `objects`: reads and replaces single objects, with the generation as a precondition;
- `files`: reads, replaces and creates whole files, and changes files that have several writers;
- `lease`: in a bucket, admits one writer per run directory, and one scorer per checkpoint;
- `lock`: locks a file on a disk;
- `key_values`: lists the keys of the stores that hold arrays;
- `appended`: appends to text files;
- `places`: converts the paths that users specify;
- `quiet`: suppresses log lines while libraries are loaded.
"""

from fire_lm.storage.appended import Appended, append_to, read_parts
from fire_lm.storage.files import (
    change_text,
    create_text,
    in_bucket,
    make_folder,
    read_bytes,
    read_ends,
    remove,
    removing_new_folders,
    replace_bytes,
    replace_text,
    sha256,
    tolerating,
)
from fire_lm.storage.key_values import stored_keys
from fire_lm.storage.lease import Lease, LeaseLost
from fire_lm.storage.lock import lock_file
from fire_lm.storage.objects import Denied
from fire_lm.storage.places import literal, place, resolved, with_name
from fire_lm.storage.presence import children, is_folder, present, require_bucket, require_folder

__all__ = [
    "Appended",
    "Denied",
    "Lease",
    "LeaseLost",
    "append_to",
    "change_text",
    "children",
    "create_text",
    "in_bucket",
    "is_folder",
    "literal",
    "lock_file",
    "make_folder",
    "place",
    "present",
    "read_bytes",
    "read_ends",
    "read_parts",
    "remove",
    "removing_new_folders",
    "replace_bytes",
    "replace_text",
    "require_bucket",
    "require_folder",
    "resolved",
    "sha256",
    "stored_keys",
    "tolerating",
    "with_name",
]
