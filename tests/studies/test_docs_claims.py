"""What the pages claim in prose: the dozen claims that readers would cite hold in the evidence."""

import json
import re
import statistics

import beside_the_paper
import length_phases
import masked_tables
import pytest
import rotary_periods
import synthetic_tables
from command import EVIDENCE, ROOT
from scipy.stats import fisher_exact
from study_pairs import interval, line_of, lines_of, page, pair, ranged, results_of, unclear
from synthetic_tables import TASKS, accuracies_of, longer, trained

from fire_lm.reporting.accuracies import LONGER, accuracy_comparison, accuracy_lines
from fire_lm.reporting.length_sweep import effective_lengths
from fire_lm.reporting.page import Table
from fire_lm.reporting.series import NATS
from fire_lm.reporting.sources import named_apart
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.reporting.task_tables import score_comparison
from fire_lm.results.folder import joined

FROZEN = "fire (normalizer_limit-64)"
LENGTHS = (64, 128, 256, 512, 1024)


def span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def test_pairs_in_the_papers_order_are_counted_as_the_comparison_does():
    (section,) = beside_the_paper.sections(results_of("mini"))
    found = re.findall(
        r"^At ([124])x the .*? order: (\d+)\. Reversed \((\d+)\):.*?Not distinguishable \((\d+);",
        "\n".join(section.paragraphs),
        flags=re.MULTILINE,
    )
    assert [line[0] for line in found] == ["1", "2", "4"]
    agree, turned, open_ = ([line[column] for line in found] for column in (1, 2, 3))
    assert (
        f"Of the 21 pairs of the seven encodings that are also in the paper's Table 4 (Table 2 for "
        f"FIRE-S), {agree[0]} are in the paper's order at the training length, {agree[1]} at twice "
        f"that length and {agree[2]} at four times. {open_[0]}, {open_[1]} and {open_[2]} pairs "
        f"cannot be told apart, in the family of all pairs at a length, and {turned[0]}, "
        f"{turned[1]} and {turned[2]} are reversed."
    ) in page("results.md")


def test_fire_at_the_quick_starts_scale():
    words = page("results.md")
    for name in ("alibi", "t5", "nope", "kerple_log"):
        assert 64 not in unclear("mini", "fire", name)
    assert unclear("mini", "fire_s", "fire") == list(LENGTHS)
    assert f"ahead, by {ranged('mini', 256, 'fire', 'kerple_log')} at four times" in words
    assert f"training length, by {ranged('mini', 64, 'fire', 'rope')}" in words


def test_rope_fails_at_longer_lengths_in_every_study():
    train_lengths = {"mini": 64, "larger": 256, "gpu": 512, "short": 16, "schedules": 64}
    for study, length in train_lengths.items():
        losses = line_of(study, "rope").points
        assert losses[4 * length].mean > 0.2 + losses[length].mean


def test_a_short_phase_of_long_rows():
    losses, words = length_phases.samples(), page("results.md")

    def gain(arm: str, length: int) -> str:
        return f"{abs(length_phases.gain(losses, arm, length).value):.3f}"

    assert (
        f"**RoPE gains most**, {gain('rope', 256)} at 256 tokens, and with YaRN "
        f"{gain('rope_yarn', 256)}"
    ) in words
    yarn = length_phases.rest_of_gain(losses, "rope_yarn", 256)
    assert abs(yarn.value) < yarn.half_width
    rotary = [losses[arm, "64, then 256", 1024].mean for arm in ("rope", "rope_yarn")]
    others = [losses[arm, "64, then 256", 1024].mean for arm in ("fire", "fire_g", "alibi")]
    assert min(rotary) - max(others) > 0.3
    rest = length_phases.rest_of_gain(losses, "fire", 1024)
    assert rest.value > rest.half_width
    assert (
        f"gains {gain('fire', 256)} at 256 and {gain('fire', 1024)} at 1,024, but loses "
        f"{gain('fire', 64)} at 64, and at 1,024 remains {rest.value:.3f} behind"
    ) in words
    freezing = {
        length: losses["fire", "64", length].mean - losses["fire_frozen", "64", length].mean
        for length in (64, 256, 1024)
    }
    assert (
        f"without training, gains {freezing[256]:.3f} at 256 and {freezing[1024]:.3f} at 1,024"
    ) in words and abs(freezing[64]) < 1e-6
    for length in (64, 256, 1024):
        harm = length_phases.gain(losses, "fire_frozen", length)
        assert harm.value > harm.half_width
    most = max(gain(arm, length) for arm in ("fire_g", "alibi") for length in (256, 1024))
    assert f"they gain at most {most}" in words


def test_parts_of_fire_without_a_clear_difference():
    (listed,) = re.findall(
        r"There is no clear difference between these: (.*?)\. The order", page("results.md")
    )
    assert listed.startswith("FIRE and Eq. 22 from four times the training length on; ")
    assert unclear("fire_ablations", "fire_eq22", "fire") == [256, 512, 1024]
    assert unclear("fire_ablations", "fire_gelu", "fire") == list(LENGTHS)
    assert "GeLU and ReLU at any length" in listed
    family = (ROOT / "docs" / "encodings.md").read_text()
    for name in ("fire_eq21", "fire_eq22", "fire_affine"):
        behind = f"{pair('fire_ablations', 1024, name, 'fire').value:.2f}"
        assert re.search(rf"`{name}`: [^|]*{behind} nats behind `fire`", family), name


def test_freezing_removes_the_drift():
    words = page("frozen_normaliser.md")
    assert unclear("frozen", FROZEN, "fire") == [64]  # the same loss, by definition
    gains = {n: interval("frozen", n, "fire", FROZEN) for n in LENGTHS}
    assert (
        f"by {gains[128]} at twice the training length, {gains[256]} at four times and "
        f"{gains[1024]} at 16 times"
    ) in words
    losses = [line_of("frozen", FROZEN).points[n].mean for n in LENGTHS]
    assert losses == sorted(losses, reverse=True)
    for arm in (FROZEN, "fire_t"):
        assert unclear("frozen", arm, "kerple_log") == []
        assert interval("frozen", 1024, "kerple_log", arm) in words
    lengths = effective_lengths(list(lines_of("frozen").values()), NATS)
    assert {row[0]: row[1] for row in lengths.rows}["fire"] == "128"


def test_the_base_of_rope():
    words = page("results.md")
    large, small = (f"rope_base_{base}, train_length 256" for base in ("1m", "500"))
    ahead = [ranged("rope_base", n, large, small) for n in (512, 1024)]
    assert f"base 500 is ahead**, by {ahead[0]} at 512 tokens and {ahead[1]} at 1,024" in words
    (_, periods) = rotary_periods.sections(results_of("rope_base"))[0].parts
    assert isinstance(periods, Table)
    fit = {row[0]: f"{row[-1]} of {row[1]}" for row in periods.rows}
    assert (fit[small], fit[large]) == ("20 of 32", "10 of 32")
    assert "With base 500, 20 of 32 rotated dimensions make a full turn within 256" in words


def test_resampling_log_n_and_scalings():
    words, spread = page("results.md"), ", resampling ExponentialPositions"
    gain = ranged("resampling", 1024, "fire", f"fire{spread}")
    assert f"positions only**, by {gain} at 16 times" in words
    assert f"RoPE's by {ranged('scalings', 256, 'rope', 'rope (yarn)')} at four times" in words


def test_which_encodings_find_a_line():
    (scores,) = suite_scores(results_of("long_eval"))
    apart: dict[str, list[str]] = {"alibi": [], "kerple_log": []}
    compared = score_comparison(scores)
    for at, found in compared.families.items():
        for name, places in apart.items():
            places += [compared.names[at]] * found.apart(name, "fire")
    sizes = ["on size_16", "on size_32", "on size_64", "on size_142"]
    assert apart == {"alibi": sizes, "kerple_log": []}
    assert "**ALiBi is told apart from FIRE from 16 lines on**, among all pairs" in page(
        "results.md"
    )


def test_sorting_of_longer_strings():
    sort = accuracies_of(*synthetic_tables.SEEDS)["BucketSort"]
    learned = [longer(run) for name in ("fire", "fire_g", "nope", "rope") for run in sort[name]]
    assert (
        f"models with FIRE, FIRE-G, NoPE or RoPE give {span(learned)} % of the symbols of strings "
        f"of 41 to 500 correctly with each of three seeds"
    ) in page("synthetic_results.md")


def test_what_the_seeds_tell_over_longer_lengths():
    """All 13 models of a task are one family of 78 pairs."""
    parts = [(study, results_of(study)) for study in synthetic_tables.SEEDS]
    symbols = ("ReverseString", "StackManipulation", "DuplicateString")
    apart, leaders = {}, {}
    for task, lines in accuracy_lines(joined(named_apart(parts))).items():
        found = accuracy_comparison(lines).families[LONGER]
        assert len(found.adjusted) == 78
        best, *others = found.means
        name = task.partition(",")[0]
        leaders[name] = best
        apart[name] = [other for other in others if found.apart(best, other)]
    assert {leaders[name] for name in symbols} == {
        "rope of synthetic_seeds_random (positions random)"
    }
    assert [apart[name] for name in ("CycleNavigation", "EvenPairs")] == [[], []]
    assert apart["BucketSort"] == ["alibi of synthetic_seeds"]
    reverse, stack, duplicate = (len(apart[name]) for name in symbols)
    told = f"It is told apart from {reverse}, {stack} and {duplicate} of the 12 other models."
    assert told in page("synthetic_results.md")


def test_log_n_on_synthetic_tasks():
    words, log_n = page("synthetic_results.md"), accuracies_of("synthetic_log_n")
    plain = accuracies_of(*synthetic_tables.SEEDS)
    cycle = {**log_n["CycleNavigation"], **plain["CycleNavigation"]}
    learned = [
        sum(trained(run) > 60 for name in synthetic_tables.CHANGED for run in cycle[name + change])
        for change in (", log n", "")
    ]
    p = fisher_exact([[of, 9 - of] for of in learned]).pvalue
    assert f"(Fisher's exact test: p = {p:.2f})" in words and learned == [5, 1]
    means = [
        statistics.fmean(map(longer, runs))
        for task in ("ReverseString", "DuplicateString", "StackManipulation")
        for name in synthetic_tables.CHANGED
        for change in ("", ", equal-mean", ", log n", ", equal-mean, log n")
        for runs in [{**log_n[task], **plain[task]}[name + change]]
    ]
    assert f"manipulation**: the means over longer lengths are {span(means)} %" in words


def test_longer_training_does_not_teach_longer_exercises():
    after = accuracies_of("synthetic_longer")
    runs = [run for arms in after.values() for (run,) in arms.values()]
    assert max(map(longer, runs)) < 55
    last = max(run[500] for run in runs)
    assert f"no model then exceeds {last:.1f} %" in page("synthetic_results.md")


def test_the_six_tasks_are_those_on_which_models_differ_most():
    ranges = {}
    for task, arms in accuracies_of("synthetic").items():
        means = [trained(run) for (run,) in arms.values()]
        ranges[task] = max(means) - min(means)
    assert set(sorted(ranges, key=ranges.__getitem__)[-6:]) == set(TASKS)


def test_what_random_positions_change():
    """By seed: the gains of RoPE and of the others on three tasks, and all gains in sorting."""
    words, arms = page("synthetic_results.md"), accuracies_of(*synthetic_tables.SEEDS)
    gains: dict[str, list[float]] = {"rope": [], "others": [], "BucketSort": []}
    for task in ("ReverseString", "StackManipulation", "DuplicateString", "BucketSort"):
        for name in (name for name in arms[task] if f"{name}, random" in arms[task]):
            pairs = zip(arms[task][f"{name}, random"], arms[task][name], strict=True)
            kind = task if task == "BucketSort" else name if name == "rope" else "others"
            gains[kind] += [longer(drawn) - longer(plain) for drawn, plain in pairs]
    assert f"raise RoPE's means by {span(gains['rope'])} points" in words
    others = gains["others"]
    assert f"change the others' by {min(others):.1f} to +{max(others):.1f}" in words
    assert len(gains["BucketSort"]) == 18 and min(gains["BucketSort"]) > 0


def test_unlearned_tasks_stay_close_to_guessing():
    one_seed = {
        task: arms for task, arms in accuracies_of("synthetic").items() if task not in TASKS
    }
    above = {
        task: max(trained(run) for (run,) in arms.values()) - synthetic_tables.guess(task, trained)
        for task, arms in one_seed.items()
        if task != "OddsFirst"
    }
    assert len(above) == 8
    assert f"at most {max(above.values()):.1f} points above" in page("synthetic_results.md")


@pytest.mark.parametrize("study, words", [
    ("synthetic_addition", "give {} % of the digits of sums of 5-digit numbers"),
    ("synthetic_recall", "With 8 pairs, all score {} %"),
])  # fmt: skip
def test_no_model_learned_to_add_or_to_recall(study, words):
    (lines,) = accuracy_lines(results_of(study)).values()
    shortest = [next(iter(line.points.values())).mean for line in lines]
    assert words.format(span(shortest)) in page("synthetic_results.md")
    assert max(shortest) < 60


RANDOM, EXPONENTIAL, BETA = "random below 2,048", "equal mean, exponential", "equal mean, beta"


def masked_arm(encoding, positions="", log_n=False):
    return encoding, (positions or masked_tables.PLAIN[0], log_n)


def more_found(arm, other, length, sign=1):
    """Return how many more hidden tokens an arm finds, with the ends of the 95 % interval."""
    found = masked_tables.change(arm, other, length)
    value, half = sign * found.value, found.half_width
    return f"{value:.1f} points ({value - half:.1f} to {value + half:.1f})"


def clearly_different(arm, other):
    found = {length: masked_tables.change(arm, other, length) for length in LENGTHS}
    return [length for length, one in found.items() if abs(one.value) > one.half_width]


def test_masked_rope_beyond_its_length():
    words, plain, log_n = page("masked.md"), masked_arm("rope"), masked_arm("rope", log_n=True)
    exponential, beta = (masked_arm("rope", name, True) for name in (EXPONENTIAL, BETA))
    best = {way: points[1024].mean for way, points in masked_tables.arms_of("rope").items()}
    assert max(best, key=best.__getitem__) == beta[1]
    assert f"beta distribution, {more_found(beta, plain, 1024)} more than plain" in words
    gain = more_found(beta, log_n, 1024).replace(" points", "")
    assert f"{gain} more than RoPE with log n" in words
    assert 1024 not in clearly_different(beta, exponential)
    for positions in (BETA, EXPONENTIAL):
        arms = (masked_arm("rope", positions, log_n) for log_n in (False, True))
        assert 1024 not in clearly_different(*arms)
    cost = [more_found(arm, plain, 64, sign=-1) for arm in (beta, exponential)]
    assert f"{cost[0]} with the beta distribution and {cost[1]} with the exponential" in words
    assert masked_tables.change(log_n, plain, 64).value == 0
    assert f"finds {more_found(log_n, plain, 512)} more at 512" in words
    assert clearly_different(masked_arm("rope", RANDOM), plain) == [64, 128, 256]


def test_masked_fire_beyond_its_length():
    words, plain, rope = page("masked.md"), masked_arm("fire"), masked_arm("rope")
    beta, with_log_n = masked_arm("fire", BETA), masked_arm("fire", BETA, log_n=True)
    best = {way: points[1024].mean for way, points in masked_tables.arms_of("fire").items()}
    assert max(best, key=best.__getitem__) == beta[1]
    assert f"FIRE finds {more_found(beta, plain, 1024)} more at 1,024" in words
    assert f"for {more_found(plain, beta, 64)} at the training length" in words
    lost = more_found(plain, masked_arm("fire", log_n=True), 256)
    assert f"Log n costs {lost} of plain FIRE at 256 tokens" in words
    assert f"{more_found(beta, with_log_n, 1024)} at 1,024 with the beta distribution" in words
    assert f"plain FIRE finds {more_found(rope, plain, 64)} fewer" in words
    assert f"{more_found(plain, rope, 1024)} more at 1,024" in words
    assert 1024 not in clearly_different(beta, masked_arm("rope", BETA, log_n=True))
    random = masked_arm("fire", RANDOM)
    assert clearly_different(random, plain) == list(LENGTHS)


def test_masked_kerple_and_alibi_beyond_their_length():
    words, plain = page("masked.md"), masked_arm("kerple-log")
    rope, alibi = masked_arm("rope"), masked_arm("alibi")
    points = masked_tables.accuracies()[plain]
    means = f"{points[64].mean:.1f} % at 64 and {points[1024].mean:.1f} % at 1,024"
    assert f"it finds {means} tokens" in words
    best = {}
    for name in ("fire", "rope"):
        found = {way: own[1024].mean for way, own in masked_tables.arms_of(name).items()}
        best[name] = name, max(found, key=found.__getitem__)
    assert f"{more_found(plain, best['fire'], 1024)} more than the best of FIRE" in words
    assert f"{more_found(plain, best['rope'], 1024)} more than the best of RoPE" in words
    assert f"for {more_found(rope, plain, 64)} fewer than RoPE at the training length" in words
    log_n = more_found(plain, masked_arm("kerple-log", log_n=True), 1024)
    assert f"Log n costs it {log_n} at 1,024" in words
    assert f"finds {more_found(plain, alibi, 64)} fewer than KERPLE at 64" in words
    ends = masked_tables.accuracies()[alibi]
    assert ends[1024].mean > ends[64].mean


def test_masked_log_n_by_encoding():
    found = masked_tables.accuracies()
    arms = {name: masked_tables.arms_of(name) for name in {name for name, _ in found}}
    best = {name: max(own, key=lambda way: own[way][1024].mean) for name, own in arms.items()}
    both = {(EXPONENTIAL, True), (BETA, True)}
    assert {name for name, way in best.items() if way in both} == {"rope", "sinusoidal"}
    for name in ("alibi", "kerple-log", "fire", "fire-g"):
        for positions in (masked_tables.PLAIN[0], EXPONENTIAL, BETA):
            without, with_log_n = (arms[name][positions, log_n] for log_n in (False, True))
            assert with_log_n[1024].mean < without[1024].mean
    at_64 = sorted((own[masked_tables.PLAIN][64].mean, name) for name, own in arms.items())
    assert [name for _, name in at_64[-2:]] == ["t5", "rope"]
    most = max(points[1024].mean for points in arms["t5"].values())
    words = f"find {at_64[-2][0]:.1f} % at 64, second to RoPE, and at most {most:.1f} % at 1,024"
    assert words in page("masked.md")


def test_the_goals_of_speed():
    folder, words = EVIDENCE / "speed", page("performance.md")
    reports = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}

    def seconds(name: str) -> float:
        return float(reports[name]["programs"]["training step"]["seconds"])

    ratio = seconds("125m_fire_v4-256") / seconds("125m_rope_v4-256")
    mfu = {name: f"{100 * report['mfu_estimate']:.1f} %" for name, report in reports.items()}
    assert f"| {ratio:.3f}; {mfu['125m_fire_v4-256']} |" in words
    assert f"| {mfu['350m_fire_v4-512']} |" in words
    kernels = re.findall(
        r"^FIRE(?: at|, L).*, B=(\d) n=(\d+) +(\d\.\d{3}) ",
        (folder / "tpu.txt").read_text(),
        flags=re.MULTILINE,
    )
    for setting in (("8", "2048"), ("8", "8192"), ("2", "2048")):
        ratios = [ratio for *own, ratio in kernels if tuple(own) == setting]
        assert f"| {'; '.join(ratios[:2])} | {'; '.join(ratios[2:])} |" in words
    measured = (folder / "cpu.txt").read_text()
    races = re.findall(r"^(?:nope|fire) +64 +(\d\.\d\d)$", measured, flags=re.MULTILINE)
    before, after = "; ".join(races[:2]), "; ".join(races[2:])
    assert f"| {before} | {after} |" in words
    starts = re.findall(r"^fire +second +(\S+) +(\S+)", measured, flags=re.MULTILINE)
    cells = [f"{wall} s ({cpu} s of CPU)" for cpu, wall in starts]
    assert f"| {' | '.join(cells)} |" in words
    totals = re.findall(r"^quick start (.*?),", measured, flags=re.MULTILINE)
    assert f"| the quick start on a bare machine | {' | '.join(totals)} |" in words
    tests = re.findall(r"^scripts/test (.*?);", measured, flags=re.MULTILINE)
    assert f"| `scripts/test` | {' | '.join(tests)} |" in words
