"""What docs/frozen_normaliser.md says of runs at a training length of 1,024 follows from them."""

from study_pairs import line_of, lines_of, page

from fire_lm.reporting.differences import Sample, text_alone

FROZEN = "fire (normalizer_limit-1024)"


def told(one: Sample, other: Sample) -> str:
    """Return the difference of two losses of a run, with its standard error over text."""
    return f"{one.mean - other.mean:.3f} ± {text_alone(one, other):.3f}"


def test_fire_drifts_less_than_at_64_and_freezing_removes_it():
    words, lines = page("frozen_normaliser.md"), lines_of("length_1024")
    fire, frozen = lines["fire"].points, lines[FROZEN].points
    four, eight = (told(fire[length], fire[1024]) for length in (4096, 8192))
    short = line_of("budgets", "fire").points
    rises = [f"{short[length].mean - short[64].mean:.3f}" for length in (256, 512)]
    assert f"to four times, its loss rises by {four}, and to eight times by {eight}" in words
    assert f"after 4.1M tokens at length 64, by {rises[0]} and {rises[1]}" in words
    gains = [told(fire[length], frozen[length]) for length in (2048, 4096, 8192)]
    assert f"by {gains[0]}, {gains[1]} and {gains[2]} at two, four and eight times" in words
    assert f"by {told(frozen[1024], frozen[8192])} from the training length to eight" in words


def test_what_falls_and_what_rises():
    words, lines = page("frozen_normaliser.md"), lines_of("length_1024")
    for arms, sign in (((FROZEN, "kerple_log", "alibi"), -1), (("rope",), 1)):
        for arm in arms:
            losses = [point.mean for point in lines[arm].points.values()]
            assert losses == sorted(losses, reverse=sign < 0), arm
    falls = [
        told(lines[arm].points[1024], lines[arm].points[8192]) for arm in ("kerple_log", "alibi")
    ]
    assert f"KERPLE's and ALiBi's losses fall by {falls[0]} and {falls[1]}" in words


def test_fire_t_has_the_lowest_loss_in_these_runs():
    words, lines = page("frozen_normaliser.md"), lines_of("length_1024")
    losses = {arm: line.points for arm, line in lines.items()}
    for length in (1024, 2048, 4096, 8192):
        assert min(losses, key=lambda arm: losses[arm][length].mean) == "fire_t"
    near, far = (told(losses["kerple_log"][n], losses["fire_t"][n]) for n in (1024, 8192))
    assert f"{near} below KERPLE's at the training length and {far} at eight times" in words
    behind = [losses[arm][1024].mean - losses["fire"][1024].mean for arm in ("rope", "t5")]
    assert min(behind) > 0.2 and "RoPE and T5 are more than 0.2 behind FIRE" in words
    at_64 = [line_of("mini", arm).points[64].mean for arm in ("rope", "t5", "fire")]
    assert max(at_64[:2]) - at_64[2] < 0.2
