"""The checkpoints that a command with --follow still has to evaluate in ongoing training runs."""

from __future__ import annotations

import jax
from etils import epath

from fire_lm.checkpoints import available_steps, checkpoint_damage
from fire_lm.errors import RunFailed, UserError
from fire_lm.processes import say
from fire_lm.runs.find import SAME_NAME, NotYet, RunSteps, find_runs
from fire_lm.runs.saved import saved_experiment
from fire_lm.sweeps.command import Command
from fire_lm.training import stopped_at
from fire_lm.training.lock import is_being_written

# The number of attempts after which an intact checkpoint that cannot be scored is skipped.
_TRIES = 3


class Survey:
    """The checkpoints to score in ongoing training runs.

    In a job of several processes, only the survey of process 0 is used.

    Attributes:
      runs: The runs that have started, by name.
      begun: Whether all specified runs had started at the last call to `look`.
    """

    def __init__(self, command: Command):
        """Create a survey of the runs of a command that has not found any checkpoints yet."""
        self._command = command
        self.runs: dict[str, RunSteps] = {}
        self._seen: set[tuple[str, int]] = set()
        self._finished: set[tuple[str, int]] = set()
        self._failures: dict[tuple[str, int], list[str]] = {}
        self._reported: set[str] = set()
        self.begun = False

    def leave(self, name: str, step: int) -> None:
        """Skip a checkpoint from now on, because it has been scored or cannot be scored."""
        self._finished.add((name, step))

    def failed(self, name: str, step: int, problem: str) -> None:
        """Record a failed attempt to score a checkpoint.

        An intact checkpoint is skipped after three failed attempts. A damaged or removed checkpoint
        is reported and skipped at once.
        """
        if jax.process_index() != 0:
            return
        if step not in available_steps(name):
            self._tell(f"checkpoint {step} of {name} was removed before it was scored")
            self.leave(name, step)
        elif damage := checkpoint_damage(name, step):
            self._tell(f"checkpoint {step} of {name} is damaged and will be skipped: {damage}")
            self.leave(name, step)
        else:
            say(problem)
            problems = self._failures.setdefault((name, step), [])
            problems.append(problem)
            if len(problems) == _TRIES:
                self.leave(name, step)

    def look(self) -> tuple[list[tuple[str, int]], str, bool]:
        """Return the checkpoints to score, the output folder, and whether training has ended."""
        due, over = [], True
        workdirs: list[epath.Path] = []
        named: list[epath.Path] = []
        self.begun = True
        for name in self._command.arguments.runs:
            try:
                runs, folders = find_runs([name], begun=False)
            except NotYet as error:
                self._tell(f"{error}: waiting for the run to start", about=str(error.folder))
                over = self.begun = False
                workdirs.append(error.folder)  # This is all that is known about these runs so far.
                named.append(error.folder)
                continue
            workdirs += [run.workdir for run in runs]
            named += folders
            for run in runs:
                self.runs[str(run.workdir)] = run
                # Check this before listing the steps, so that the last checkpoint is not missed.
                over &= self._has_ended(run)
                due += [(str(run.workdir), step) for step in self._steps(run)]
        names = [run.workdir.name for run in self.runs.values()]
        if len(set(names)) < len(names):
            raise UserError(SAME_NAME)
        return due, self._command.folder(workdirs, named), over

    def _steps(self, run: RunSteps) -> list[int]:
        """Return the steps that remain to be scored, and report checkpoints that were removed."""
        name, steps = str(run.workdir), available_steps(run.workdir)
        selected = {(name, step) for step in steps if not run.steps or step in run.steps}
        gone = {pair for pair in self._seen - selected - self._finished if pair[0] == name}
        if gone:
            scored = self._command.scored_steps(run.workdir)
            for _, step in sorted(gone):
                if step not in scored:  # Otherwise, another job has scored the checkpoint.
                    self._tell(f"checkpoint {step} of {name} was removed before it was scored")
        self._finished |= gone
        self._seen |= selected
        return sorted(step for _, step in selected - self._finished)

    def _has_ended(self, run: RunSteps) -> bool:
        name, steps = str(run.workdir), available_steps(run.workdir)
        experiment = saved_experiment(run.workdir)
        last = experiment.values(experiment.kind)["train_steps"]
        finished = {step for workdir, step in self._finished if workdir == name}
        if run.steps and set(run.steps) <= finished | set(steps):
            return True
        if is_being_written(name):
            return False  # a start with more steps records them only after its first step
        if steps and steps[-1] >= last:
            return True
        stopped = stopped_at(run.workdir)
        if stopped is not None:
            self._tell(f"training of {name} stopped early at step {stopped}: see spikes.jsonl")
        return stopped is not None

    def scored(self) -> list[tuple[str, int]]:
        """Return all checkpoints of these runs that have rows, whichever job scored them."""
        if jax.process_index() != 0:
            return []
        return [
            (name, step)
            for name, run in self.runs.items()
            for step in sorted(self._command.scored_steps(run.workdir))
            if not run.steps or step in run.steps
        ]

    def judge(self) -> None:
        """Raise RunFailed if a checkpoint could not be scored or never existed, or there is none.

        A checkpoint that was removed before it was scored, or that is damaged, is not an error.
        """
        lost = [f"{n}@{s}: {p[-1]}" for (n, s), p in self._failures.items() if len(p) == _TRIES]
        known = self._finished | set(self.scored())
        never = [(n, s) for n, run in self.runs.items() for s in run.steps if (n, s) not in known]
        lost += [f"{n}@{s}: training has ended, but there is no such checkpoint" for n, s in never]
        if lost:
            count = f"{len(lost)} checkpoint{'s' * (len(lost) > 1)}"
            raise RunFailed("\n".join([f"{count} could not be scored", *lost]))
        if not self.scored():
            raise RunFailed("training has ended without an intact checkpoint to score")

    def _tell(self, words: str, about: str = "") -> None:
        """Print words unless they, or other words about the same thing, have been printed."""
        if (about or words) not in self._reported:
            say(words)
            self._reported.add(about or words)
