"""The sentences of docs/results.md about the encodings of 2024 to 2026 follow from the evidence."""

import itertools

import numpy as np
from command import ROOT
from study_pairs import line_of, lines_of, pair, ranged, results_of, unclear

from fire_lm.reporting.differences import Sample, difference
from fire_lm.reporting.length_sweep import families

FROZEN, FOUR = "fire (normalizer_limit-64)", "recent_4_layers"
LENGTHS = [64, 128, 256, 512, 1024]


def section() -> str:
    page = (ROOT / "docs" / "results.md").read_text()
    return " ".join(page.partition("## Encodings of 2024 to 2026")[2].partition("\n## ")[0].split())


def ahead(study: str, arm: str, other: str) -> list[int]:
    """Return the lengths at which an arm is ahead of another, as a single comparison."""
    pairs = {length: pair(study, length, arm, other) for length in line_of(study, arm).points}
    return [length for length, found in pairs.items() if found.value < -found.half_width]


def told_apart(study: str, arm: str, other: str) -> list[int]:
    """Return the lengths at which a test of all pairs tells two arms apart."""
    (family,) = families(results_of(study))
    of_lengths = family.comparison.families
    return [length for length in LENGTHS if of_lengths[length].apart(arm, other)]


def rise(study: str, arm: str) -> Sample:
    """Return by how much the loss rises from the training length to 16 times, for each seed."""
    points = line_of(study, arm).points
    trained, far = points[64].values, points[1024].values
    return Sample({f"{study} {run}": far[run] - trained[run] for run in far})


def more(one: Sample, other: Sample) -> str:
    """Return by how much the first rises more, with the ends of the 95 % interval over seeds."""
    found = difference(one, other)
    ends = found.value - found.half_width, found.value + found.half_width
    return f"{found.value:.3f} ({ends[0]:.3f} to {ends[1]:.3f}"


def test_what_is_ahead_of_fire_g():
    words = section()
    assert unclear("recent", "bam", "fire_g") == [64, 128, 256]
    assert unclear("recent", "bam", "fire_t") == LENGTHS
    assert f"{ranged('recent', 512, 'fire_g', 'bam')} at eight times" in words
    assert f"{ranged('recent', 1024, 'fire_g', 'bam')} at 16 times" in words
    assert f"by {ranged('recent', 256, FROZEN, 'bam')} at four times" in words
    schedules = ("rnope_swa", "swan")
    assert all(ahead(FOUR, arm, "fire_g") == LENGTHS for arm in schedules)
    leads = [-pair(FOUR, length, arm, "fire_g").value for arm in schedules for length in LENGTHS]
    assert f"at every length, by {min(leads):.3f} to {max(leads):.3f}." in words


def test_what_gates_change():
    words = section()
    plain, gated = rise("recent", "fire"), rise("recent", "fox_fire")
    assert (
        f"`fox_fire` rises by {gated.mean:.3f} and that of FIRE by {plain.mean:.3f}, a difference "
        f"of {more(plain, gated)}; seeds only)"
    ) in words
    assert 64 in unclear("recent", "fox_fire", "fire")
    assert f"lowers the loss by {ranged('recent', 512, 'kerple_log', 'fox_kerple')} at ei" in words
    assert unclear("recent", "fox", "kerple_log") == LENGTHS
    assert ahead("recent", "fox_kerple", "kerple_log") == [512, 1024]


def test_what_the_others_change():
    assert ahead("recent", "pope", "fire") == [64, 128]
    assert ahead("recent", "fire", "fire_ssmax") == [128, 256, 512, 1024]
    assert unclear("recent", "rope_ssmax", "rope") == LENGTHS
    assert unclear("recent", "dape_fire", "fire") == LENGTHS
    assert unclear("recent", "fire_sink", "fire") == [64, 256, 512, 1024]
    worse = pair("recent", 128, "fire_sink", "fire").value
    assert f"sinks only at twice the training length, by {worse:.3f}" in section()


def test_what_remains_on_four_times_the_tokens():
    words, near = section(), ["bam", "fire_t", FROZEN, "fire_g"]
    for one, other in itertools.combinations(near, 2):
        assert unclear("recent_4m", one, other) == LENGTHS
    for arm in ("bam", "fox_kerple"):
        assert ahead("recent_4m", arm, "kerple_log") == LENGTHS
    assert f"at 16 times, it is {ranged('recent_4m', 1024, 'fire_g', 'bam')}." in words
    falls = [more(rise("recent", arm), rise("recent_4m", arm)) for arm in ("fox", "fox_kerple")]
    assert f"falls by {falls[0]}) more than after 1,000 steps for `fox`" in words
    assert f"and by {falls[1]}) more for `fox_kerple`" in words
    assert f"`fox_fire` now rises by {rise('recent_4m', 'fox_fire').mean:.3f}." in words
    below = [ranged("recent_4m", 1024, "fire", arm) for arm in ("fox_fire", "pope")]
    assert f"stay {below[0]} and {below[1]} below FIRE at 16 times" in words


def test_what_the_others_change_on_four_times_the_tokens():
    words, study = section(), "recent_4m"
    assert ahead(study, "fire", "fire_ssmax") == [512, 1024]
    raised = [ranged(study, length, "fire_ssmax", "fire") for length in (512, 1024)]
    assert f"at eight and 16 times, by {raised[0]} and {raised[1]}, and changes RoPE's" in words
    for arm, plain in (("rope_ssmax", "rope"), ("fire_sink", "fire")):
        assert unclear(study, arm, plain) == LENGTHS
    assert ahead(study, "dape_fire", "fire") == [1024]
    assert f"at 16 times, by {ranged(study, 1024, 'fire', 'dape_fire')}; sinks" in words
    assert ahead(study, "fire", "rope") == LENGTHS[1:]
    assert ahead(study, "fox_kerple", "alibi") == LENGTHS
    falls = difference(rise(study, "alibi"), rise(study, "kerple_log"))
    assert abs(falls.value) < falls.half_width and rise(study, "alibi").mean < -0.05


def test_windowed_schedules_on_four_times_the_tokens():
    words, study = section(), "recent_4m_4_layers"
    for arm in ("swan", "rnope_swa"):
        assert ahead(study, arm, "rope") == LENGTHS and ahead(study, arm, "fire") == LENGTHS[1:]
        assert ahead(FOUR, arm, "fire") == LENGTHS, "no longer at the training length"
        assert unclear(study, arm, "fire_g") == LENGTHS
    assert (
        f"for `rnope_swa` at 16 times, it is {ranged(study, 1024, 'fire_g', 'rnope_swa')}" in words
    )


def test_what_more_training_does_to_gates():
    words, study = section(), "recent_8m"
    rises = {arm: rise(study, arm) for arm in ("fire", "fox_fire", "fox")}
    since = {arm: more(found, rise("recent", arm)) for arm, found in rises.items()}
    assert f"rises by {rises['fire'].mean:.3f}, which is {since['fire']}) more than after" in words
    lowest = {
        length: min(lines_of(study).values(), key=lambda line: line.points[length].mean).name
        for length in LENGTHS
    }
    assert [length for length, name in lowest.items() if name == FROZEN] == [256, 512, 1024]
    below = ranged(study, 1024, "fire", "fox_fire")
    assert (
        f"`fox_fire` rises by {rises['fox_fire'].mean:.3f}, {since['fox_fire']}) more than after "
        f"1,000 steps, and is {below} below FIRE's at 16 times."
    ) in words
    falls = more(rise("recent", "fox"), rises["fox"])
    assert f"its loss falls by {-rises['fox'].mean:.3f}, {falls}) more than after 1,000" in words
    assert f"it costs {ranged(study, 64, 'fox', 'fire')} at the training length" in words
    assert ahead(study, FROZEN, "fox") == [64, 128, 256, 512]
    assert unclear(study, "fire_g", FROZEN) == unclear(study, "fox", "kerple_log") == LENGTHS
    for other in ("fire", FROZEN):
        behind = ranged(study, 64, "kerple_log", other)
        assert f"KERPLE is behind FIRE, frozen or not, by {behind} at the training length" in words
    spread = {
        name: np.std([*line.points[1024].values.values()]) for name, line in lines_of(study).items()
    }
    assert max(spread, key=spread.__getitem__) == "fire_g"


def test_what_is_told_apart_among_all_pairs():
    for arm in ("alibi", "fire", "rope"):
        assert told_apart("recent", "bam", arm)[-3:] == [256, 512, 1024]
    assert told_apart("recent", "bam", "fire_g") == []
    assert told_apart(FOUR, "rnope_swa", "fire_g") == [128, 256, 1024]
