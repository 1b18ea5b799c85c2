"""The documentation says what the study of LongEval's lines found."""

from collections import defaultdict
from pathlib import Path

from etils import epath

from fire_lm.experiment import load_config
from fire_lm.reporting.differences import compare
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.reporting.task_tables import measured_scores
from fire_lm.results.folder import read_results

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "results.md").read_text().split())
RESULTS = read_results(epath.Path(ROOT / "fire_lm/reporting/evidence/long_eval"))
SIZES = (2, 4, 8, 16, 32, 64, 142)
LEARNED = 90  # percent: the accuracy at 4 lines of a run that learned the task


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


def test_the_page_has_the_accuracy_of_every_run():
    by, names = accuracies(), ("kerple_log", "alibi", "fire", "rope")
    for size in (4, 16, 32, 142):
        cells = [", ".join(f"{run[size]:.0f}" for run in by[name]) for name in names]
        assert f"| {size} | {' | '.join(cells)} |" in PAGE
    assert f"| lines | {' | '.join(names)} |" in PAGE


def test_the_page_says_which_runs_learn_the_task_and_how_far_they_generalise():
    by = accuracies()
    alibi, fire, kerple, rope = by["alibi"], by["fire"], by["kerple_log"], by["rope"]
    *good, bad = sorted((run[4] for run in kerple), reverse=True)
    low, best = min(run[4] for run in alibi + fire), max(rope, key=lambda run: run[4])
    assert min(good + [low]) > LEARNED > 60 > max(bad, best[4])
    assert (
        f"all runs of ALiBi and FIRE answer at least {low:.0f} % correctly, two runs of KERPLE at "
        f"least {min(good):.0f} %, and the third {bad:.0f} %."
    ) in PAGE
    further = [run for run in kerple + alibi if run[4] > LEARNED]
    at_32, at_142 = ([run[size] for run in further] for size in (32, 142))
    of_fire = [run[32] for run in fire]
    assert (
        f"at 32 lines, they answer {min(at_32):.0f} to {max(at_32):.0f} % correctly, and FIRE "
        f"{min(of_fire):.0f} to {max(of_fire):.0f} %; at 142 lines, {min(at_142):.0f} to "
        f"{max(at_142):.0f} %, and FIRE {max(run[142] for run in fire):.0f} %."
    ) in PAGE
    assert (
        f"its best run answers {best[4]:.0f} % correctly at 4 lines, {best[8]:.0f} % at 8 and "
        f"{best[16]:.0f} % at 16."
    ) in PAGE
    assert max(run[8] for run in rope) == best[8] and best[16] == 0


def test_the_page_says_which_encodings_are_told_apart():
    (scores,) = suite_scores(RESULTS)
    apart = {"alibi": [], "kerple_log": []}
    for one in measured_scores(scores):
        found = compare(one.samples, lower_is_better=False)
        for name, places in apart.items():
            places += [one.place] * found.apart(name, "fire")
    sizes = ["on size_16", "on size_32", "on size_64", "on size_142"]
    assert apart == {"alibi": sizes, "kerple_log": []}
    assert "ALiBi is told apart from FIRE from 16 lines on, KERPLE from neither" in PAGE


def test_the_second_phase_decides_whether_a_run_learns_the_task():
    by = accuracies()
    first = {point.run: point.loss for point in RESULTS.training if point.step == 1}
    learned: dict[bool, list[float]] = {True: [], False: []}
    for run in RESULTS.runs:
        learned[by[run.encoding][run.seed][4] > LEARNED].append(first[run.run])
    assert (len(learned[True]), len(learned[False])) == (8, 4)
    assert (
        f"a loss of at most {max(learned[True]):.2f} nats per token of the targets, and the other "
        f"runs one of at least {min(learned[False]):.2f}."
    ) in PAGE


def test_the_exercises_are_sixteen_times_as_long_as_in_training():
    lengths = {row.input_length for row in RESULTS.task_scores}
    (trained,) = {run.train_length for run in RESULTS.runs}
    assert {length // trained for length in lengths} == {16}
    assert "which are about 16 times as long" in PAGE


def test_the_documentation_has_the_cost_and_the_settings():
    minutes = [run.seconds / 60 for run in RESULTS.runs]
    assert len(minutes) == 12
    assert f"{min(minutes):.0f} to {max(minutes):.0f} minutes of one core)" in PAGE
    assert {(run.seed, run.step) for run in RESULTS.runs} == {(seed, 4000) for seed in range(3)}
    model = ["configs/model.gin", "configs/models/tiny.gin", "configs/positions/fire.gin"]
    vocabulary = ["VOCABULARY='bytes'", "VOCAB_SIZE=384"]
    base = load_config(["configs/long_eval/base.gin", model[-1]], []).call("pretrain")
    copy, lines = (
        load_config([f"configs/long_eval/{name}.gin", *model], vocabulary).call("finetune")
        for name in ("copy", "lines")
    )
    assert (copy.data.train_on_inputs, lines.data.train_on_inputs) == (True, False)
    for run in (base, copy, lines):
        assert (run.batch_size, run.train_length) == (8, 160)
        rate = run.optimizer.learning_rate
        assert f"{run.train_steps:,} steps at a learning rate of {rate:g}" in PAGE
