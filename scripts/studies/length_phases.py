"""What a short phase of long rows at the end of training buys, from docs/evidence/length_phases."""

from __future__ import annotations

from command import EVIDENCE
from etils import epath

from fire_lm.reporting import charts, figure
from fire_lm.reporting.differences import Difference, Sample, difference
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.series import Series
from fire_lm.results import SweepRow
from fire_lm.results.tables import read_table

LENGTHS = (64, 256, 1024)
SHORT, PHASE, LONG = "64", "64, then 256", "256"
_PHASES = {"short": SHORT, "schedule": PHASE, "yarn": PHASE, "long": LONG}
_ARMS = {
    "fire": "FIRE",
    "fire_frozen": "FIRE, frozen",
    "fire_g": "FIRE-G",
    "alibi": "ALiBi",
    "rope": "RoPE",
    "rope_yarn": "RoPE, then YaRN",
}

Losses = dict[tuple[str, str, int], Sample]  # by encoding, lengths of training and of evaluation


def samples() -> Losses:
    """Return the losses of all seeds."""
    path = epath.Path(EVIDENCE / "length_phases" / "length_sweep.csv")
    values: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in read_table(path, SweepRow):
        phase, _, seed = row.run.split("-")
        if row.length not in LENGTHS:
            continue
        arm = "fire_frozen" if row.variant else row.encoding
        values.setdefault((arm, _PHASES[phase], row.length), {})[seed] = row.nll
    by_arm = {key: Sample(of_seeds) for key, of_seeds in values.items()}
    for length in LENGTHS:  # YaRN starts from the runs with RoPE
        for trained in (SHORT, LONG):
            by_arm["rope_yarn", trained, length] = by_arm["rope", trained, length]
    return by_arm


def losses() -> str:
    """Return the means and standard deviations by encoding and lengths of training."""
    by_arm = samples()
    rows = []
    for arm, name in _ARMS.items():
        for trained in [PHASE] if arm == "rope_yarn" else [SHORT, PHASE, LONG]:
            of_lengths = [by_arm[arm, trained, length] for length in LENGTHS]
            means = [f"{sample.mean:.3f} ± {sample.spread:.3f}" for sample in of_lengths]
            rows.append([name, trained, *means])
    header = ["", "trained at", *(f"at {length}" for length in LENGTHS)]
    return Table("", header, rows).markdown()


def differences() -> str:
    """Return what the phase changes, and what it lacks of rows that are long throughout.

    Runs with and without the phase share their first 950 steps, so they are paired by seed.
    """
    by_arm = samples()
    rows = []
    for arm, name in _ARMS.items():
        gains = [gain(by_arm, arm, length) for length in LENGTHS]
        rest = [rest_of_gain(by_arm, arm, length) for length in LENGTHS]
        rows.append([name, *map(in_words, [*gains, *rest])])
    header = [f"at {length}" for length in LENGTHS]
    columns = [f"minus {SHORT}, {head}" for head in header]
    columns += [f"minus {LONG}, {head}" for head in header]
    return Table("", ["", *columns], rows).markdown()


def gain(by_arm: Losses, arm: str, length: int) -> Difference:
    """Return what the phase changes."""
    return difference(by_arm[arm, PHASE, length], by_arm[arm, SHORT, length])


def rest_of_gain(by_arm: Losses, arm: str, length: int) -> Difference:
    """Return the difference from rows that are long throughout."""
    return difference(by_arm[arm, PHASE, length], renamed(by_arm[arm, LONG, length]))


def renamed(sample: Sample) -> Sample:
    """Return a sample whose runs are not paired with others of the same seeds."""
    return Sample({f"other {seed}": value for seed, value in sample.values.items()})


def in_words(apart: Difference) -> str:
    return f"{apart.value:+.3f} ± {apart.half_width:.3f}"


def picture() -> Picture:
    """Return a figure with a panel for each encoding and a line for each way of training."""
    by_arm, names = (
        samples(),
        {trained: f"trained at {trained}" for trained in (SHORT, PHASE, LONG)},
    )
    axis = figure.Axis("length of evaluation", "nats per token", lengths=True)
    panels = [
        figure.Panel(
            encoding,
            [
                Series(name, {n: by_arm[arm, trained, n] for n in LENGTHS}, arm=name)
                for trained, name in names.items()
            ],
            axis,
        )
        for arm, encoding in _ARMS.items()
    ]
    styles = charts.styles(list(names.values()))
    return figure.picture("length_phases", "", "loss by length and phase", panels, styles)
