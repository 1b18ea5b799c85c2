"""What one process of a job learns or encounters, all of its processes do."""

from argparse import Namespace
from types import SimpleNamespace

import jax
import pytest
from started_together import finish, start_together

from fire_lm.errors import RunFailed, UserError
from fire_lm.processes import by_first, failing_together, initialize_distributed
from fire_lm.sweeps import schedule

JOB = """
import argparse
import sys
import jax
from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.processes import by_first, failing_together, initialize_distributed

from unittest import mock
from fire_lm.lm_eval import engine
from fire_lm.sweeps import claims
from fire_lm.sweeps.claims import claimed_by_job
from fire_lm.sweeps import schedule

initialize_distributed()
with failing_together():
    pass
assert by_first(lambda: ["found", 1]) == ["found", 1]

folder, = sys.argv[1:]
with claimed_by_job(folder, "work") as first, claimed_by_job(folder, "work") as second:
    assert first is not None and second is None
    first()

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
        print(type(error).__name__, error, flush=True)

if jax.process_index() == 0:
    claims.claimed = fail
try:
    with claimed_by_job(folder, "other"):
        pass
except RunFailed as error:
    print(error, error.everywhere, flush=True)
class Verb:
    arguments = argparse.Namespace(runs=[], also=[], follow=False, dry_run=False)
    folder = check = combine = scored_steps = lambda *_: None
    combines = False

    def __init__(self):
        self.scored = []

    def evaluate(self, workdir, step):
        self.scored.append(step)
        if jax.process_index() == 1:
            raise RunFailed("only here")
        return True

schedule.chosen_checkpoints = lambda *_: ([("run", 1), ("run", 2)], "")
verb = Verb()
try:
    schedule.evaluate_checkpoints(verb)
except RunFailed as error:
    print(error, flush=True)
print(verb.scored, flush=True)

engine.experiment_at_evaluation = lambda *_: (mock.MagicMock(), "")
engine.tokenized_of_run = mock.MagicMock()
engine.choose_step = lambda *_: 1
if jax.process_index() == 0:
    engine.open_run = mock.MagicMock()
    try:
        engine.Leader("run")
    except UserError as error:
        print(error, flush=True)
    engine.dismiss()
else:
    def open_run(name):
        raise UserError(f"{name} contains no run on this disk")
    engine.open_run = open_run
    engine.follow()
    print("dismissed", flush=True)
"""


@pytest.mark.ci
def test_an_error_of_one_process_is_raised_in_both(tmp_path):
    started = start_together(["-c", JOB, str(tmp_path)], 2, module=())
    shared = ["UserError refused by process 0", "RunFailed lost by process 1", "no lease True"]
    # Process 1 does not continue with checkpoint 2, and tells process 0 why it cannot open a run.
    own = [["[1, 2]", "run contains no run on this disk"], ["only here", "[1]", "dismissed"]]
    for process, output, lines in zip(started, finish(started), own, strict=True):
        assert process.returncode == 0, output[-3000:]
        assert output.splitlines()[-len(shared + lines) :] == shared + lines


@pytest.mark.parametrize("everywhere", [False, True])
def test_following_a_run_ends_with_an_error_of_one_process(monkeypatch, everywhere):
    """An error that all processes raise is left to the survey, which tries the step again."""
    failed: list[str] = []
    looks = iter([([("run", 1)], "", False), ([], "", True)])

    def score(*_: object) -> bool:
        raise RunFailed("damaged", everywhere)

    survey = SimpleNamespace(
        begun=False,
        look=lambda: next(looks),
        judge=lambda: None,
        failed=lambda name, step, problem: failed.append(problem),
    )
    verb = SimpleNamespace(
        arguments=Namespace(runs=[], dry_run=False), folder=None, scored_steps=None, evaluate=score
    )
    monkeypatch.setattr(schedule, "Survey", lambda *_: survey)
    monkeypatch.setattr(schedule, "by_first", lambda work: work())
    monkeypatch.setattr(schedule, "agreed", lambda value: value)
    monkeypatch.setattr(schedule, "_EVERY", 0.0)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    if everywhere:
        schedule.follow(verb)
        assert failed == ["damaged"]
    else:
        with pytest.raises(RunFailed, match="damaged"):
            schedule.follow(verb)
        assert not failed


def test_a_process_alone_raises_its_own_error():
    with pytest.raises(UserError, match="no"), failing_together():
        raise UserError("no")
    assert by_first(lambda: 3) == 3


@pytest.mark.parametrize(
    "address, process, told",
    [
        ("host:1234", "2", "JAX_PROCESS_ID is 2: it must be from 0 to JAX_NUM_PROCESSES - 1 = 1"),
        ("host:1234", "-1", "JAX_PROCESS_ID is -1"),
        ("host:1234", "x", "must also be set to whole numbers"),
        ("host", "0", "JAX_COORDINATOR_ADDRESS is 'host': it must be HOST:PORT"),
    ],
)
def test_a_job_that_the_environment_misdescribes_is_refused(monkeypatch, address, process, told):
    variables = {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2", "PROCESS_ID": process}
    for name, value in variables.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: pytest.fail("joined"))
    with pytest.raises(UserError, match=told):
        initialize_distributed()
