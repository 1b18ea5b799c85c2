"""Runs whose settings changed between two starts, and results that such a change makes obsolete."""

from __future__ import annotations

import re
from collections.abc import Callable

from etils import epath

from fire_lm import storage
from fire_lm.errors import RunFailed
from fire_lm.experiment import ABSENT, Difference, Experiment
from fire_lm.processes import say
from fire_lm.results.tables import remove_later_rows
from fire_lm.runs.inputs import read_inputs
from fire_lm.runs.saved import Saved

# Parameters that do not affect results, and configurables that have only such parameters. Paths are
# among them: a run cannot resume on another text.
_WITHOUT_EFFECT = (
    *("pretrain.log_every", "finetune.log_every"),
    *("build_decoder.remat", "build_decoder.scan_layers", "build_decoder.attention"),
    *("TextData.data_dir", "TextToText.data_dir", "Blocks.path"),
    *("pretrain.microbatches", "finetune.microbatches"),
)
_CONFIGURABLES_WITHOUT_EFFECT = ("Checkpointing", "Watchdog", "MeshShape")


def affects_results(parameter: str) -> bool:
    """Return whether results depend on a parameter, beyond rounding."""
    configurable = parameter.rpartition(".")[0]
    return parameter not in _WITHOUT_EFFECT and configurable not in _CONFIGURABLES_WITHOUT_EFFECT


def changes(
    experiment: Experiment, begun: Saved, of: Callable[[str], bool] = lambda parameter: True
) -> list[Difference]:
    """Return the settings on which training depends that differ from those of an earlier start.

    More steps are no change, nor are other paths of the same inputs. Only the parameters for which
    `of` returns True are compared.

    Raises:
      UserError: The earlier configuration cannot be loaded.
    """
    inputs, paths = read_inputs(begun.workdir), experiment.paths
    longer = ("TRAIN_STEPS", "PRETRAINING_STEPS", f"{experiment.kind}.train_steps")
    return [
        difference
        for difference in experiment.differences_from(begun.experiment, of)
        if difference.old is ABSENT
        or difference.name not in longer
        or difference.new <= difference.old
        if not inputs.same_input(*difference, paths)
    ]


def other_parameters(experiment: Experiment, begun: Saved) -> bool:
    """Return whether a step may reach other parameters than with an earlier configuration.

    The learning rate may follow the number of steps.
    """
    steps = [one.values(one.kind)["train_steps"] for one in (experiment, begun.experiment)]
    return steps[0] != steps[1] or bool(changes(experiment, begun, affects_results))


def discard_results_after(workdir: str | epath.Path, step: int) -> None:
    """Remove the results of steps after `step`, which belong to checkpoints that no longer exist.

    A run that resumes with other settings reaches the same steps with other parameters. Without
    this, later sweeps would take the rows of the discarded checkpoints for theirs.
    """
    folder = storage.place(workdir)
    for path in (*storage.children(folder), *storage.children(folder / "measures")):
        if not path.name.endswith(".csv"):
            continue
        try:
            if remove_later_rows(path, step):
                say(f"removed the rows of steps after {step} from {path}: the settings changed")
        except RunFailed as error:  # it may be a file of the user
            say(str(error))
    for path in storage.children(folder / "predictions"):
        # TASK.SPLIT.VARIANT.STEP.LENGTH..., see `predictions_file`; a long name is cut
        named = re.match(r"(?:[^.]*\.){3}(\d+)\.", path.name)
        if not named or int(named[1]) > step:
            storage.remove(path)
