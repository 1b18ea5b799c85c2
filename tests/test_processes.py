"""What one process of a job learns or encounters, all of its processes do."""

import pytest
from started_together import finish, start_together

from fire_lm.errors import UserError
from fire_lm.processes import by_first, failing_together

JOB = """
import sys
import jax
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.processes import by_first, failing_together, initialize_distributed

from fire_lm.sweeps import claims
from fire_lm.sweeps.claims import claimed_by_job
from fire_lm.sweeps.schedule import reraise_unless_shared

initialize_distributed()
with failing_together():
    pass
assert by_first(lambda: ["found", 1]) == ["found", 1]

folder, = sys.argv[1:]
with claimed_by_job(folder, "work") as first, claimed_by_job(folder, "work") as second:
    assert (first, second) == (True, False)

def fail(*_):
    raise RunFailed("no lease")

def refuse():
    raise UserError("refused by process 0")

for told in ("refused by process 0", "lost by process 1"):
    try:
        if told.endswith("0"):
            by_first(refuse)
        with failing_together():
            if jax.process_index() == 1:
                raise RunFailed(told)
    except FireLMError as error:
        reraise_unless_shared(error)
        print(type(error).__name__, error, flush=True)

if jax.process_index() == 0:
    claims.claimed = fail
try:
    with claimed_by_job(folder, "other"):
        pass
except RunFailed as error:
    print(error, error.everywhere, flush=True)
try:
    reraise_unless_shared(RunFailed("only here"))
except RunFailed as error:
    print(error, flush=True)
"""


@pytest.mark.ci
def test_an_error_of_one_process_is_raised_in_both(tmp_path):
    started = start_together(["-c", JOB, str(tmp_path)], 2, module=())
    for process, output in zip(started, finish(started), strict=True):
        assert process.returncode == 0, output[-3000:]
        assert output.splitlines()[-4:] == [
            "UserError refused by process 0",
            "RunFailed lost by process 1",
            "no lease True",
            "only here",
        ]


def test_a_process_alone_raises_its_own_error():
    with pytest.raises(UserError, match="no"), failing_together():
        raise UserError("no")
    assert by_first(lambda: 3) == 3
