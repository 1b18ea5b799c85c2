"""docs/synthetic_results.md agrees with our measurements on synthetic tasks."""

from collections.abc import Callable, Sequence, Set
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from scipy.stats import binom

from fire_lm.cli import main
from fire_lm.reporting.length_accuracy import AccuracyLine, accuracy_lines, mean_of_guesses
from fire_lm.results.folder import read_results
from fire_lm.tasks.synthetic import CHOMSKY
from fire_lm.tasks.synthetic.scoring import mean_weights

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "fire_lm" / "reporting" / "evidence" / "synthetic"
PAGE = ROOT / "docs" / "synthetic_results.md"
FIGURES = {
    "synthetic": 3,
    "synthetic_seeds": 1,
    "synthetic_seeds_random": 1,
    "synthetic_log_n": 1,
    "synthetic_addition": 1,
    "synthetic_recall": 1,
}
NOT_LEARNED = (
    "EvenPairs",
    "ParityCheck",
    "ModularArithmetic",
    "ModularArithmeticBrackets",
    "MissingDuplicateString",
    "SolveEquation",
)
LEARNED_IN_PART = (
    "DuplicateString",
    "OddsFirst",
    "StackManipulation",
)
TRAINED = [10, 20, 30, 40]
LONGER = [41, 50, 60, 80, 100, 120, 140, 170, 200, 240, 280, 320, 360, 400, 450, 500]
PLAIN = {"nope", "rope", "alibi", "kerple_log", "fire", "fire_g", "t5"}
RANDOM = {f"{name}, random" for name in PLAIN - {"nope"}}


@pytest.fixture(scope="module")
def lines() -> dict[str, dict[str, AccuracyLine]]:
    """Return the lines of each task by the name of the encoding and, if any, `random`."""
    described = ", resampling RandomizedPositions (positions random)"
    return {
        task.removesuffix(", slots"): {
            line.name.replace(described, ", random"): line for line in of_task
        }
        for task, of_task in accuracy_lines(read_results(epath.Path(EVIDENCE))).items()
    }


def test_every_arm_was_measured_at_every_length(lines):
    assert lines.keys() == {task.__name__ for task in CHOMSKY} and len(CHOMSKY) == 15
    for of_task in lines.values():
        assert of_task.keys() == PLAIN | RANDOM
        for line in of_task.values():
            assert line.trained_lengths == TRAINED and line.longer_lengths == LONGER


def best(lines: dict[str, AccuracyLine], among: Set[str], side: str) -> str:
    """Return the highest mean among some arms over trained or longer lengths, and its encoding."""
    name = max(sorted(among), key=lambda name: getattr(lines[name], side))
    return f"{getattr(lines[name], side):.1f} {name}"


def table(lines: dict[str, dict[str, AccuracyLine]]) -> list[str]:
    """Return the lines of the page's table: the highest means of each task."""
    return [
        "| task | guess, trained | trained lengths | guess, longer | longer lengths, positions "
        "0, 1, 2, ... | longer lengths, random |",
        f"|{' --- |' * 6}",
        *(
            f"| {task} | {guess(task, 'trained'):.1f} | "
            f"{best(lines[task], PLAIN | RANDOM, 'trained')} | {guess(task, 'longer'):.1f} | "
            f"{best(lines[task], PLAIN, 'longer')} | {best(lines[task], RANDOM, 'longer')} |"
            for task in (task.__name__ for task in CHOMSKY)
        ),
    ]


def guess(task: str, side: str) -> float:
    """Return the mean of the best answer without reading over trained or longer lengths."""
    found = mean_of_guesses(task, TRAINED if side == "trained" else LONGER)
    assert found is not None
    return found


def mean_over(accuracy: Callable[[int], float], lengths: Sequence[int]) -> float:
    return float(mean_weights(lengths) @ [accuracy(length) for length in lengths])


def test_the_page_has_a_row_for_each_task(lines):
    assert "\n".join(table(lines)) + "\n\n" in PAGE.read_text()


def change(of_task: dict[str, AccuracyLine], side: str) -> dict[str, float]:
    """Return by how many points random positions raise the mean of each encoding."""
    return {
        name: getattr(of_task[f"{name}, random"], side) - getattr(of_task[name], side)
        for name in PLAIN - {"nope"}
    }


def test_the_page_says_what_was_measured(lines):
    page = " ".join(PAGE.read_text().split())
    reverse, duplicate = lines["ReverseString"], lines["DuplicateString"]
    others = [reverse[name].trained for name in PLAIN - {"rope", "nope"}]
    at_random = [reverse[name].trained for name in RANDOM]
    longer = [line.longer for line in reverse.values()]
    at_500 = [line.points[500].value for line in reverse.values()]
    assert (
        f"RoPE scores {reverse['rope'].trained:.1f} % over training lengths, NoPE "
        f"{reverse['nope'].trained:.1f} %, and the others {min(others):.0f} to {max(others):.0f} "
        f"%. At random positions, all score {min(at_random):.0f} to {max(at_random):.0f} %."
    ) in page
    assert (
        f"the means of all models are {min(longer):.1f} to {max(longer):.1f} %, and at 500 symbols "
        f"they score {min(at_500):.1f} to {max(at_500):.1f} %."
    ) in page
    lowered = [-value for value in change(reverse, "trained").values()]
    assert f"on reversing, by {min(lowered):.1f} to {max(lowered):.1f} points" in page
    on_reversing, on_duplicating = change(reverse, "longer"), change(duplicate, "longer")
    rope = on_duplicating.pop("rope")
    assert (
        f"by {min(on_reversing.values()):.1f} to {max(on_reversing.values()):+.1f} points; on "
        f"duplicating, they raise all of them: RoPE's by {rope:.1f} points, the others' by "
        f"{min(on_duplicating.values()):.1f} to {max(on_duplicating.values()):.1f}."
    ) in page
    assert min(on_duplicating.values()) > 0


def test_the_page_says_where_rope_gains_from_random_positions(lines):
    page = " ".join(PAGE.read_text().split())
    names = ("ReverseString", "DuplicateString", "StackManipulation", "OddsFirst")
    tasks = [lines[name] for name in names]
    for of_task in tasks:
        assert max(of_task, key=lambda name: of_task[name].longer) == "rope, random"
    second, first = sorted(line.longer for line in lines["OddsFirst"].values())[-2:]
    assert f"the second highest mean is only {first - second:.1f} points lower" in page
    *means, mean = (f"{of_task['rope, random'].longer:.1f}" for of_task in tasks)
    *gains, gain = (f"{change(of_task, 'longer')['rope']:.1f}" for of_task in tasks)
    assert (
        f"on reversing, duplicating, stack manipulation and odds first: {', '.join(means)} and "
        f"{mean} %, which is {', '.join(gains)} and {gain} points more"
    ) in page


def test_the_page_says_which_rules_were_learned_in_part(lines):
    page = " ".join(PAGE.read_text().split())
    of_tasks = [list(lines[task].values()) for task in LEARNED_IN_PART]
    trained = [[line.trained for line in of_task] for of_task in of_tasks]
    *some, last = (f"{min(means):.1f} to {max(means):.1f}" for means in trained)
    assert f"over training lengths, they score {', '.join(some)} and {last} %" in page
    for task, means in zip(LEARNED_IN_PART, trained, strict=True):
        assert min(means) > guess(task, "trained")
    at_500 = [line.points[500].value for of_task in of_tasks for line in of_task]
    assert f"At 500 symbols, they score {min(at_500):.1f} to {max(at_500):.1f} %" in page


def test_the_page_says_which_rules_were_hardly_learned(lines):
    page = " ".join(PAGE.read_text().split())
    square_root, product = (
        [line.trained for line in lines[task].values()]
        for task in ("ComputeSqrt", "BinaryMultiplication")
    )
    assert (
        f"models compute {span(square_root)} % of the digits of a square root, where guessing "
        f"scores {guess('ComputeSqrt', 'trained'):.1f} %, and {span(product)} % of those of a "
        "product of binary numbers, where guessing scores "
        f"{guess('BinaryMultiplication', 'trained'):.1f} %."
    ) in page


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def test_the_page_says_which_rules_no_model_learned(lines):
    page = " ".join(PAGE.read_text().split())
    gains = [
        max(line.trained for line in lines[task].values()) - guess(task, "trained")
        for task in NOT_LEARNED
    ]
    *others, last = (f"{gain:.1f}" for gain in gains)
    assert f"exceed guessing by {', '.join(others)} and {last} points" in page
    assert max(gains) < 20
    better = {name for name, line in lines["EvenPairs"].items() if line.trained > 53}
    assert {name.partition(",")[0] for name in better} == {"fire", "fire_g"}
    assert "only models with FIRE or FIRE-G exceed it by more than 3 points" in page
    addition = lines["BinaryAddition"].values()
    trained = [line.trained for line in addition]
    worst, *others = sorted(line.longer for line in addition)
    assert worst == lines["BinaryAddition"]["alibi"].longer
    assert (
        f"all score {min(trained):.1f} to {max(trained):.1f} %; over longer ones, ALiBi scores "
        f"{worst:.1f} % and the others {others[0]:.1f} to {others[-1]:.1f} %."
    ) in page
    parity = [f"{line.longer:.1f}" for line in lines["ParityCheck"].values()]
    assert f"on parity, {parity.count('47.5')} score 47.5" in page


def test_the_page_says_which_encodings_learned_cycle_navigation(lines):
    page = " ".join(PAGE.read_text().split())
    cycle = dict(lines["CycleNavigation"])
    points = {length: point.value for length, point in cycle["t5"].points.items()}
    t5, nope, rope, t5_random = (
        cycle.pop(name).trained for name in ("t5", "nope", "rope, random", "t5, random")
    )
    others = [line.trained for line in cycle.values()]
    assert (
        f"T5's buckets score {t5:.1f} % over training lengths, NoPE {nope:.1f} %, RoPE at random "
        f"positions {rope:.1f} % and T5's buckets at random positions {t5_random:.1f} %; the other "
        f"nine score {min(others):.1f} to {max(others):.1f} %"
    ) in page
    assert len(others) == 9
    assert (
        f"T5's buckets still score {points[50]:.1f} % at 50 symbols and {points[100]:.1f} % at "
        f"100, but {points[120]:.1f} % at 120"
    ) in page


def sorted_by_length(length: int) -> float:
    """Return the expected accuracy of giving the first fifth of the places symbol 0, and so on.

    A place holds a symbol if at most as many symbols as precede it are smaller, and more are not
    larger; both numbers are binomial.
    """
    place = np.arange(length)
    symbol = 5 * place // length
    holds = binom.cdf(place, length, symbol / 5) - binom.cdf(place, length, (symbol + 1) / 5)
    return float(100 * holds.mean())


def test_the_page_says_which_encodings_sort_longer_strings(lines):
    page = " ".join(PAGE.read_text().split())
    sort = lines["BucketSort"]
    learned = [line.trained for name, line in sort.items() if name != "alibi, random"]
    assert f"all but one learn to sort: {min(learned):.1f} to {max(learned):.1f} %" in page
    by_length = mean_over(sorted_by_length, LONGER)
    assert [round(sorted_by_length(n), 1) for n in (40, 100, 500)] == [77.8, 85.8, 93.7]
    names = ("fire_g", "kerple_log", "fire", "nope", "rope")
    *some, last = (f"{sort[name].longer:.1f}" for name in names)
    at_500 = [sort[name].points[500].value for name in names]
    assert (
        f"FIRE-G, KERPLE, FIRE, NoPE and RoPE score {', '.join(some)} and {last} % over longer "
        f"lengths, and {min(at_500):.1f} to {max(at_500):.1f} % at 500 symbols"
    ) in page
    assert (
        "The length rule, which gives the first fifth of the places symbol 0, the second symbol "
        f"1, and so on, scores {by_length:.1f} % over longer lengths and "
        f"{sorted_by_length(500):.1f} %"
    ) in page
    assert (
        f"T5's buckets score {sort['t5'].longer:.1f} % and ALiBi {sort['alibi'].longer:.1f} %"
    ) in page
    assert sort["alibi"].longer < sort["t5"].longer < by_length < sort["rope"].longer
    alibi = sort["alibi, random"]
    others = [sort[name].longer for name in RANDOM - {"alibi, random"}]
    assert (
        f"At random positions, ALiBi scores {alibi.trained:.1f} % over training lengths and "
        f"{alibi.longer:.1f} % over longer ones, the others {min(others):.1f} to "
        f"{max(others):.1f} % over longer ones"
    ) in page
    gains, lost = change(sort, "longer"), -change(sort, "trained")["alibi"]
    assert (
        f"On sorting, ALiBi gains {gains['alibi']:.1f} points and T5's buckets {gains['t5']:.1f}, "
        f"but ALiBi loses {lost:.1f} over training lengths"
    ) in page


def test_the_page_describes_the_runs():
    page = " ".join(PAGE.read_text().split())
    results = read_results(epath.Path(EVIDENCE))
    assert {(run.seed, run.step) for run in results.runs} == {(0, 3000)}
    assert {row.sequences for row in results.accuracies} == {64}
    assert {round(run.parameters / 1e6, 2) for run in results.runs} == {0.15}
    sort = [run.seconds / 60 for run in results.runs if "BucketSort" in run.data]
    minutes = [run.seconds / 60 for run in results.runs if "BucketSort" not in run.data]
    assert (
        f"between {min(minutes):.1f} and {max(minutes):.1f} minutes on one core, and between "
        f"{min(sort):.1f} and {max(sort):.1f} minutes for sorting"
    ) in page
    assert {guess("ReverseString", "longer"), guess("DuplicateString", "longer")} == {50.0}


@pytest.mark.ci
@pytest.mark.parametrize(("folder", "figures"), FIGURES.items())
def test_the_figures_are_those_of_the_report(tmp_path, folder, figures):
    evidence = EVIDENCE.with_name(folder)
    assert main(["report", str(evidence), f"--output={tmp_path}"]) == 0
    names = {path.name for path in evidence.glob("*.svg")}
    assert len(names) == figures
    for name in names:
        same = (tmp_path / name).read_bytes() == (evidence / name).read_bytes()
        assert same, f"draw {name} again with the command on the page"
        assert f"evidence/{evidence.name}/{name})" in PAGE.read_text()
