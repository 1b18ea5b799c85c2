"""Lines of results that a job appends to a file."""

from pathlib import Path

import pytest
from bucket import Bucket
from bucket_faults import Denied
from etils import epath

from fire_lm.errors import RunFailed
from fire_lm.generation.result_lines import appended_lines


def test_lines_follow_those_that_are_there(tmp_path: Path):
    path = tmp_path / "new" / "results.jsonl"
    for line in (b'{"id": 1}\n', b'{"id": 2}\n'):
        with appended_lines(epath.Path(path)) as append:
            append(line)
        with path.open("ab") as file:
            file.write(b'{"id"')  # as if killed while writing
    with appended_lines(epath.Path(path)):
        pass
    assert path.read_bytes() == b'{"id": 1}\n{"id": 2}\n'


def test_lines_that_a_bucket_refuses_are_an_error(bucket: Bucket, capsys):
    """A command that ended well would have lost its results."""
    path = epath.Path(bucket.url("run/results.jsonl"))
    with appended_lines(path) as append:
        append(b"first\n")
    assert bucket.objects["run/results.jsonl"] == b"first\n"
    with pytest.raises(RunFailed, match=r"7 bytes could not be .*\nrun the same command to"):
        with appended_lines(path) as append:
            bucket.faults = [Denied(prefix="run", to="writes")]
            append(b"second\n")
    bucket.faults = []
    with pytest.raises(KeyError, match="cause"), appended_lines(path) as append:
        bucket.faults = [Denied(prefix="run", to="writes")]
        append(b"third\n")
        raise KeyError("cause")
    assert "6 bytes could not be uploaded" in capsys.readouterr().err
