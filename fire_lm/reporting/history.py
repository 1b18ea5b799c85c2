"""What happened to runs before their newest start, which also tells arms apart."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping

from etils import epath

from fire_lm.checkpoints import parted
from fire_lm.errors import FireLMError, UserError, first_line
from fire_lm.experiment import Experiment
from fire_lm.processes import note_once
from fire_lm.reporting.arms import SEEDS, differing
from fire_lm.results.folder import Setting
from fire_lm.runs.changed import affects_results, changes
from fire_lm.runs.saved import read_history, saved_experiment
from fire_lm.storage import place


def settings_of_history(
    places: Mapping[str, epath.Path], experiments: Mapping[str, Experiment]
) -> list[Setting]:
    """Return the settings of earlier steps of runs, and of the runs from which they started."""
    return [*earlier_settings(places, experiments), *source_settings(experiments)]


def earlier_settings(
    places: Mapping[str, epath.Path], experiments: Mapping[str, Experiment]
) -> list[Setting]:
    """Return the settings that runs had in some of their steps only, before they were changed.

    Their names begin with "earlier", and their values end with the step up to which they applied.
    """
    found = []
    for run, path in places.items():
        values: dict[str, list[str]] = {}
        same = {path.name for path in experiments[run].paths}  # a resumed run has the same inputs
        try:
            for (_, before), (until, _) in itertools.pairwise(read_history(path)):
                for name, old, _ in changes(experiments[run], before, affects_results):
                    if name not in same:
                        parameter = f"earlier.{name.rpartition('.')[2]}"
                        values.setdefault(parameter, []).append(f"{old!r} until step {until}")
        except UserError as error:
            note_once(f"{first_line(error)}\nearlier steps of the run are not compared")
        found += [Setting(run, name, ", ".join(of_name)) for name, of_name in values.items()]
    return found


def source_settings(experiments: Mapping[str, Experiment]) -> list[Setting]:
    """Return the settings, except seeds, in which the sources of runs (INIT_FROM) differ.

    Their names begin with "source". Settings that a run has inherited are those of the run itself.
    """
    sources = {run: parted(one.train.init_from)[0] for run, one in experiments.items()}
    saved: dict[str, Experiment] = {}
    for source in dict.fromkeys(filter(None, sources.values())):
        with contextlib.suppress(FireLMError):
            saved[source] = saved_experiment(place(source))
    found = {run: saved[source] for run, source in sources.items() if source in saved}
    missing = {run: source for run, source in sources.items() if source and source not in saved}
    if len({*missing.values(), *saved}) > 1 and missing:
        note_once(
            f"the runs from which {', '.join(missing)} started are not found here: arms do not "
            "tell apart how these were trained"
        )
    return [
        Setting(one.run, f"source.source {one.name.rpartition('.')[2]}", one.value)
        for one in differing(found)
        if one.name not in SEEDS and affects_results(one.name)
        if repr(experiments[one.run].settings.get(one.name, ("", None))[1]) != one.value
    ]
