"""The documentation says what the study of LongEval's lines found."""

from collections import defaultdict
from pathlib import Path

from etils import epath

from fire_lm.reporting.differences import compare
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.reporting.task_tables import measured_scores
from fire_lm.results.folder import read_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "results.md").read_text().split())
RESULTS = read_results(epath.Path(ROOT / "docs/evidence/long_eval"))
SIZES = (2, 4, 8, 16, 32, 64, 142)


def accuracies() -> dict[str, list[dict[int, float]]]:
    """Return the accuracies of each encoding's runs by size, in the order of their seeds."""
    seed = {run.run: run.seed for run in RESULTS.runs}
    found: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in RESULTS.task_scores:
        assert (row.metric, row.examples, row.variant) == ("accuracy", 100, "")
        size = int(row.split.removeprefix("size_"))
        found[row.encoding][seed[row.run]][size] = row.value
    assert found.keys() == {"alibi", "fire", "kerple_log", "rope"}
    for runs in found.values():
        assert sorted(runs) == [0, 1, 2] and all(
            tuple(sorted(run)) == SIZES for run in runs.values()
        )
    return {name: [runs[seed] for seed in sorted(runs)] for name, runs in found.items()}


def test_the_page_says_which_runs_learn_the_task():
    by = accuracies()
    *good, bad = sorted((run[4] for run in by["kerple_log"]), reverse=True)
    low, best = (min(run[4] for run in by["alibi"] + by["fire"]), max(run[4] for run in by["rope"]))
    assert min(*good, low) > 90 > 60 > max(bad, best)
    assert (
        f"all runs of ALiBi and FIRE answer at least {low:.0f} % correctly, two runs of KERPLE at "
        f"least {min(good):.0f} %, and the third {bad:.0f} %; those of RoPE at most {best:.0f} %."
    ) in PAGE


def test_the_page_says_which_encodings_are_told_apart():
    (scores,) = suite_scores(RESULTS)
    apart = {"alibi": [], "kerple_log": []}
    for one in measured_scores(scores):
        found = compare(one.samples, lower_is_better=False)
        for name, places in apart.items():
            places += [one.place] * found.apart(name, "fire")
    sizes = ["on size_16", "on size_32", "on size_64", "on size_142"]
    assert apart == {"alibi": sizes, "kerple_log": []}
    assert (
        "**ALiBi is told apart from FIRE from 16 lines on**, among all pairs; KERPLE is told apart "
        "from neither."
    ) in PAGE


def test_the_exercises_are_sixteen_times_as_long_as_in_training():
    lengths = {row.input_length for row in RESULTS.task_scores}
    (trained,) = {run.train_length for run in RESULTS.runs}
    assert {length // trained for length in lengths} == {16}
    assert f"about 16 times the training length ({trained} tokens)" in PAGE
