"""What one process of a job learns or encounters, all of its processes do."""

import pytest
from started_together import finish, start_together

from fire_lm.errors import UserError
from fire_lm.processes import by_first, failing_together

JOB = """
import jax
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.processes import by_first, failing_together, initialize_distributed

initialize_distributed()
with failing_together():
    pass
assert by_first(lambda: ["found", 1]) == ["found", 1]

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
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.ci
def test_an_error_of_one_process_is_raised_in_both():
    started = start_together(["-c", JOB], 2, module=())
    for process, output in zip(started, finish(started), strict=True):
        assert process.returncode == 0, output[-3000:]
        assert output.splitlines()[-2:] == [
            "UserError refused by process 0",
            "RunFailed lost by process 1",
        ]


def test_a_process_alone_raises_its_own_error():
    with pytest.raises(UserError, match="no"), failing_together():
        raise UserError("no")
    assert by_first(lambda: 3) == 3
