"""docs/results.md agrees with our studies of one question each (docs/evidence)."""

import functools
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import rotary_periods
from command import EVIDENCE
from overprinting import overprinted, saved
from study_pairs import pair, ranged, results_of, unclear

from fire_lm.cli import main
from fire_lm.reporting.page import Table

__all__ = ["saved"]  # a fixture
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "results.md").read_text()
PAGE = " ".join(TEXT.split())
LOSSES = "losses_embedded_validation_concat.svg"
SECTION = "Loss against length"
# For each study: the figure and the section of its report on the page, the number of rows, and the
# columns of the section's table that the page has, or () for all.
STUDIES: dict[str, tuple[str, str, int, Sequence[int]]] = {
    "larger": (LOSSES, SECTION, 5, ()),
    "gpu": ("losses_python_packages_validation_concat.svg", SECTION, 5, ()),
    "fire_ablations": (LOSSES, SECTION, 7, (1, 3, 5)),
    "family": (LOSSES, SECTION, 4, (1, 3, 5)),
    "short": (LOSSES, SECTION, 6, (1, 3, 5)),
    "resampling": (LOSSES, SECTION, 12, (1, 3, 5)),
    "schedules": (LOSSES, SECTION, 4, (1, 3, 5)),
    "scalings": (LOSSES, SECTION, 12, (1, 3, 5)),
    "rope_base": (LOSSES, SECTION, 5, (1, 3, 5)),
    "long_eval": ("long_eval_by_size.svg", "Task scores: long_eval", 4, (2, 4, 5, 7)),
    "alibi_pi": (
        "positions_embedded_validation_long_documents_length_512_71_680_tokens.svg",
        SECTION,
        4,
        (),
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("study", STUDIES)
def test_the_page_has_the_table_and_the_figure_of_each_study(study, tmp_path, saved):
    folder, (figure, section, rows, columns) = EVIDENCE / study, STUDIES[study]
    assert main(["report", str(folder), f"--output={tmp_path}"]) == 0
    text = (tmp_path / "report.md").read_text().split(f"\n## {section}")[1]
    (table, *_) = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(table.splitlines()) == 2 + rows
    assert chosen(table, columns) in TEXT, f"docs/results.md differs from {study}: {section}"
    assert (tmp_path / figure).read_bytes() == (folder / figure).read_bytes()
    assert f"evidence/{study}/{figure})" in TEXT
    assert [label for image in saved for label in overprinted(image)] == []


def chosen(table: str, columns: Sequence[int]) -> str:
    """Return a table with its first column and the chosen ones, or with all if there are none."""
    if not columns:
        return table
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    lines = (" | ".join(row[i] for i in (0, *columns)) for row in cells)
    return "".join(f"| {line} |\n" for line in lines)


def difference(study: str, length: int, arms: tuple[str, str]) -> float:
    """Return by how many nats per token the first arm is worse; "ARM+VARIANT" selects a variant."""
    first, second = (mean_loss(study, arm, length) for arm in arms)
    return first - second


def losses(study: str, name: str, length: int) -> list[float]:
    """Return an arm's losses at a length, one for each seed."""
    results = results_of(study)
    run_of = {run.run: run for run in results.runs}
    arm, _, variant = name.partition("+")
    found = {
        run_of[row.run].seed: row.nll
        for row in results.losses
        if (run_of[row.run].arm, row.variant, row.length) == (arm, variant, length)
    }
    assert len(found) == (1 if study in ("larger", "gpu") else 3)
    return list(found.values())


def mean_loss(study: str, name: str, length: int) -> float:
    return statistics.fmean(losses(study, name, length))


def test_one_step_up_in_scale():
    small, large = (
        [mean_loss(study, "fire", train * n) - mean_loss(study, "fire", train) for n in (8, 16)]
        for study, train in (("mini", 64), ("larger", 256))
    )
    assert (
        f"by {large[0]:.3f} from the training length to eight times ({small[0]:.3f} at the quick "
        f"start's scale) and by {large[1]:.3f} to 16 times (there {small[1]:.3f})"
    ) in PAGE
    larger = functools.partial(difference, "larger")
    rope, kerple = (larger(256, (other, "fire")) for other in ("rope", "kerple_log"))
    behind = [larger(1024, ("fire", other)) for other in ("kerple_log", "alibi")]
    assert (
        f"FIRE is {rope:.3f} ahead of RoPE and {kerple:.3f} ahead of KERPLE at the training "
        f"length, and {behind[0]:.3f} behind KERPLE and {behind[1]:.3f} behind ALiBi at four times"
    ) in PAGE
    for study, lengths in (("larger", [256 * 2**n for n in range(5)]), ("gpu", [512, 1024, 2048])):
        for arm in ("alibi", "kerple_log"):
            falling = [mean_loss(study, arm, n) for n in lengths]
            assert falling == sorted(falling, reverse=True)  # "improve with the length"
    fire_g = [mean_loss("larger", "fire_g", 256 * 2**n) for n in range(5)]
    assert min(fire_g) == fire_g[2] < fire_g[3] < fire_g[4] < fire_g[0]
    assert "its loss rises from eight times on, but at 16 times is still below that at" in PAGE


def test_one_gpu():
    behind = difference("gpu", 512, ("fire", "rope"))
    arms = ("rope", "alibi", "kerple_log", "fire", "fire_g")
    spreads = [statistics.stdev(losses("mini", name, 64)) for name in arms]
    training = {(row.encoding, row.step): row.loss for row in results_of("gpu").training}
    gaps = [training["fire", step] - training["rope", step] for step in (600, 1300)]
    assert (
        f"FIRE is {behind:.3f} behind RoPE, which may be chance: at the quick start's scale, seeds "
        f"of these five encodings differ by {min(spreads):.3f} to {max(spreads):.3f} (standard "
        f"deviation). Its training loss is {gaps[0]:.3f} above RoPE's at step 600 and "
        f"{gaps[1]:.3f} above at step 1,300"
    ) in PAGE


def test_rope_fails_at_longer_lengths_in_every_study():
    train_lengths = {"mini": 64, "larger": 256, "gpu": 512, "short": 16, "schedules": 64}
    for study, length in train_lengths.items():
        assert mean_loss(study, "rope", 4 * length) > 0.2 + mean_loss(study, "rope", length)


def test_parts_of_fire():
    (listed,) = re.findall(r"There is no clear difference between these: (.*?)\. The order", PAGE)
    assert listed.split("; ") == [
        "FIRE and Eq. 22 from four times the training length on",
        "Eq. 22 and Eq. 21 at the training length",
        "one and two hidden layers from twice the training length on",
        "GeLU and ReLU at any length",
        "and the final activation and none up to twice the training length",
    ]
    assert [
        unclear("fire_ablations", *arms)
        for arms in (
            ("fire_eq22", "fire"),
            ("fire_eq21", "fire_eq22"),
            ("fire_1_hidden", "fire"),
            ("fire_gelu", "fire"),
            ("fire_final_activation", "fire_1_hidden"),
        )
    ] == [[256, 512, 1024], [64], [128, 256, 512, 1024], [64, 128, 256, 512, 1024], [64, 128]]
    parts = functools.partial(difference, "fire_ablations")
    for length in (64, 128, 256, 512, 1024):
        assert parts(length, ("fire_eq22", "fire")) > 0
        assert parts(length, ("fire_eq21", "fire_eq22")) > 0
    affine = parts(64, ("fire_affine", "fire"))
    activation = parts(1024, ("fire_final_activation", "fire_1_hidden"))
    assert (
        f"An affine f costs {affine:.2f} at the training length (there 0.06), the final activation "
        f"{activation:.3f} at 16 times"
    ) in PAGE


def test_what_the_family_says_of_the_parts_of_fire():
    parts = functools.partial(difference, "fire_ablations")
    family = (Path(__file__).resolve().parents[2] / "docs" / "encodings.md").read_text()
    for name, text in (
        ("fire_eq21", "rises from x2 on, {} nats behind `fire` at x16"),
        ("fire_eq22", "{} nats behind `fire`; from x4 on"),
        ("fire_affine", "rises from x2 on, {} nats behind `fire` at x16"),
    ):
        found = f"{parts(1024, (name, 'fire')):.2f}"
        assert f"`{name}`: {text.format(found)}" in family
    assert unclear("fire_ablations", "fire_final_activation", "fire") == [512, 1024]
    assert "about 0.05 nats behind `fire` up to x4, indistinguishable beyond" in family


def test_encodings_outside_the_paper():
    """The comparison with FIRE requires that all runs were scored on the same text."""
    folders = [results_of(name) for name in ("fire_ablations", "family")]
    assert len({found.texts.of(row) for found in folders for row in found.losses}) == 1
    ahead = [ranged("family", 1024, "fire", arm) for arm in ("sandwich", "kerple_power")]
    assert f"KERPLE-power are {ahead[0]} and {ahead[1]} ahead of FIRE there at 16 times" in PAGE
    for arm in ("sandwich", "kerple_power"):
        assert unclear("family", arm, "fire") == [64, 128]
    assert unclear("family", "xpos", "fire") == [64]
    behind = pair("family", 64, "sinusoidal", "fire").value
    assert f"sinusoids are {behind:.3f} behind." in PAGE


def test_training_at_a_quarter_of_the_length():
    for name in ("alibi", "t5", "nope"):
        assert not {16, 32} & set(unclear("short", name, "fire"))
        assert all(difference("short", n, (name, "fire")) > 0 for n in (16, 32))
    assert unclear("short", "rope", "fire") == [16, 32]
    kerple = [ranged("short", n, "fire", "kerple_log") for n in (64, 256)]
    assert f"by {kerple[0]} at four times and {kerple[1]} at 16 times" in PAGE


def test_mixed_schedules():
    beside = functools.partial(difference, "schedules")
    longer = (128, 256, 512, 1024)
    assert all(beside(n, ("fire_and_rope", "fire")) > 0 for n in longer)
    assert all(beside(n, ("rope", "fire_and_rope")) > 0 for n in longer)
    assert 1024 in unclear("schedules", "fire_and_rope", "fire")
    assert unclear("schedules", "nope_every_4th", "rope") == [64, *longer]


def test_resampled_positions_and_log_n():
    spread, drawn = ", resampling ExponentialPositions", ", resampling RandomizedPositions"
    study = functools.partial(ranged, "resampling")
    gains = [study(256, "rope", f"rope{change}") for change in (spread, drawn)]
    assert f"by {gains[0]} and {gains[1]} there. **FIRE gains from equal-mean" in PAGE
    assert f"positions only**, by {study(1024, 'fire', f'fire{spread}')} at 16 times" in PAGE
    for length in (64, 128, 256, 512, 1024):
        assert difference("resampling", length, (f"fire{drawn}", "fire")) > 0
    assert unclear("resampling", "fire, log_n LogN", "fire") == [64]
    for change in ("", spread):
        assert len(unclear("resampling", f"rope{change}, log_n LogN", f"rope{change}")) == 5
    both = [study(512, f"{name}{spread}, log_n LogN", name + spread) for name in ("rope", "fire")]
    assert f"log n raises their loss by {both[0]} with RoPE and {both[1]} with FIRE" in PAGE


def test_scalings_and_log_n_at_evaluation():
    lengths = (128, 256, 512, 1024)

    def change(name: str, variant: str) -> dict[int, float]:
        return {n: difference("scalings", n, (f"{name}+{variant}", name)) for n in lengths}

    yarn, ntk, interpolated = (change("rope", name) for name in ("yarn", "ntk", "pi"))
    assert all(yarn[n] < ntk[n] < 0 < interpolated[n] for n in lengths)
    assert f"RoPE's by {ranged('scalings', 256, 'rope', 'rope (yarn)')} at four times" in PAGE
    for name in ("rope_pi", "rope_yarn"):
        assert all(difference("scalings", n, (name, "rope+yarn")) < 0 for n in (64, 128, 256))
        assert difference("scalings", 1024, (name, "rope+yarn")) > 0
    largest = max(abs(value) for value in change("rope", "log_n-clipped").values())
    assert f"RoPE's loss by at most {largest:.3f}." in PAGE
    assert min(change("fire", "log_n-clipped").values()) > 0
    drift = mean_loss("scalings", "fire", 1024) - mean_loss("scalings", "fire", 64)
    removed = -100 * change("fire", "log_n-clipped-bias")[1024] / drift
    assert f"it removes {removed:.0f} % of the drift at 16 times the training length" in PAGE


def test_the_base_of_rope_and_interpolation_of_alibi():
    large, small = (f"rope_base_{base}, train_length 256" for base in ("1m", "500"))
    assert unclear("rope_base", large, small) == [64, 128, 256]
    ahead = [ranged("rope_base", n, large, small) for n in (512, 1024)]
    assert f"base 500 is ahead**, by {ahead[0]} at 512 tokens and {ahead[1]} at 1,024" in PAGE
    (_, periods) = rotary_periods.sections(results_of("rope_base"))[0].parts
    assert isinstance(periods, Table)
    fit = {row[0]: f"{row[-1]} of {row[1]}" for row in periods.rows}
    assert (fit[small], fit[large]) == ("20 of 32", "10 of 32")
    assert "With base 500, 20 of 32 rotated dimensions make a full turn within 256 tokens" in PAGE
    costs = [
        ranged("alibi_pi", 2 * n, f"{name} (interpolate)", name)
        for n in (64, 256)
        for name in [f"alibi, train_length {n}"]
    ]
    assert f"increases it, by {costs[0]} at 128 tokens and {costs[1]} at 512." in PAGE
