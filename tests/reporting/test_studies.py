"""The documentation agrees with our studies of one question each (fire_lm/reporting/evidence)."""

import functools
import itertools
import re
import statistics
from pathlib import Path

import pytest
from studies import EVIDENCE, interval, pair, results_of, unclear

from fire_lm.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
STUDIES = {
    "larger": ("losses_embedded_validation_concat.svg", {"Loss against length": 5}),
    "gpu": ("losses_python_packages_validation_concat.svg", {"Loss against length": 5}),
    "fire_ablations": ("losses_embedded_validation_concat.svg", {"Loss against length": 7}),
    "family": ("losses_embedded_validation_concat.svg", {"Loss against length": 4}),
    "short": ("losses_embedded_validation_concat.svg", {"Loss against length": 6}),
    "resampling": ("losses_embedded_validation_concat.svg", {"Loss against length": 12}),
    "schedules": ("losses_embedded_validation_concat.svg", {"Loss against length": 4}),
    "scalings": ("losses_embedded_validation_concat.svg", {"Loss against length": 12}),
    "rope_base": (
        "losses_embedded_validation_concat.svg",
        {"Loss against length": 5, "Rotary periods": 5},
    ),
    "long_eval": ("long_eval_by_size.svg", {"Task scores: long_eval": 4}),
    "alibi_pi": (
        "positions_embedded_validation_long_documents_length_512_71_680_tokens.svg",
        {"Loss against length": 4},
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("study", STUDIES)
def test_the_documentation_has_the_tables_of_the_studies(study, tmp_path):
    folder, (figure, tables) = EVIDENCE / study, STUDIES[study]
    assert main(["report", str(folder), f"--output={tmp_path}"]) == 0
    page = (DOCS / "results.md").read_text()
    for section, rows in tables.items():
        text = (tmp_path / "report.md").read_text().split(f"\n## {section}")[1]
        (table, *_) = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
        assert len(table.splitlines()) == 2 + rows
        assert table in page, f"docs/results.md differs from {study}: {section}"
    assert (tmp_path / figure).read_bytes() == (folder / figure).read_bytes()
    assert f"evidence/{study}/{figure})" in page


def difference(study: str, length: int, arms: tuple[str, str]) -> float:
    """Return by how many nats per token the first arm is worse; "ARM+VARIANT" selects a variant."""
    return statistics.fmean(differences(study, length, arms))


def differences(study: str, length: int, arms: tuple[str, str]) -> list[float]:
    """Return the difference of the two arms' losses for each seed."""
    first, second = (losses(study, arm, length) for arm in arms)
    return [first[seed] - second[seed] for seed in sorted(first)]


def losses(study: str, name: str, length: int) -> dict[int, float]:
    """Return an arm's losses at a length, by seed."""
    results = results_of(study)
    run_of = {run.run: run for run in results.runs}
    arm, _, variant = name.partition("+")
    found = {
        run_of[row.run].seed: row.nll
        for row in results.losses
        if (run_of[row.run].arm, row.variant, row.length) == (arm, variant, length)
    }
    assert len(found) == (1 if study in ("larger", "gpu") else 3)
    return found


def mean_loss(study: str, name: str, length: int) -> float:
    return statistics.fmean(losses(study, name, length).values())


def test_the_documentation_says_what_the_studies_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    long_1m, long_500, short_1m, short_500 = (
        f"rope_base_{base}, train_length {length}" for length in (256, 64) for base in ("1m", "500")
    )
    ranking = [long_1m, long_500, short_1m, short_500, "rope"]
    for length in (64, 128, 256):
        for better, worse in itertools.pairwise(ranking):
            assert difference("rope_base", length, (worse, better)) > 0
    beyond = [difference("rope_base", n, (long_1m, long_500)) for n in (256, 512, 1024)]
    spread = statistics.stdev(differences("rope_base", 256, (long_1m, long_500)))
    widths = [pair("rope_base", n, long_1m, long_500).half_width for n in (256, 512, 1024)]
    assert f"{-beyond[0]:.3f} ± {widths[0]:.3f} ahead at 256 (± {spread:.3f}, the stand" in page
    assert (
        f"by {beyond[1]:.2f} ± {widths[1]:.2f} at 512 tokens and {beyond[2]:.2f} ± "
        f"{widths[2]:.2f} at 1,024"
    ) in page
    assert unclear("rope_base", long_1m, long_500) == [64, 128, 256]
    assert unclear("rope_base", short_1m, short_500) == [64, 128, 1024]
    assert [unclear("rope_base", arm, "rope") for arm in ranking[:4]] == [[], [], [], [1024]]
    costs = [
        difference("alibi_pi", 2 * n, (f"alibi, train_length {n}+interpolate",
                                       f"alibi, train_length {n}"))
        for n in (64, 256)
    ]  # fmt: skip
    assert (
        f"only increases the loss, by {costs[0]:.2f} nats at 128 tokens and {costs[1]:.2f} at 512"
    ) in page


def test_the_documentation_says_what_one_step_up_in_scale_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    small, large = (
        [mean_loss(study, "fire", train * n) - mean_loss(study, "fire", train) for n in (4, 8, 16)]
        for study, train in (("mini", 64), ("larger", 256))
    )
    assert (
        f"its loss is {-large[0]:.3f} below that at the training length, whereas it is "
        f"{small[0]:.3f} above it in the runs at the quick start's scale. At eight times, it is "
        f"{large[1]:.3f} above it (there {small[1]:.3f}), and at 16 times {large[2]:.3f} (there "
        f"{small[2]:.3f})"
    ) in page
    of_fire_g = [mean_loss("larger", "fire_g", 256 * 2**n) for n in range(5)]
    assert min(of_fire_g) == of_fire_g[2]
    larger = functools.partial(difference, "larger")
    assert (
        f"where it is {larger(1024, ('fire_g', 'alibi')):.3f} behind ALiBi, and "
        f"{of_fire_g[4] - of_fire_g[2]:.3f} higher at 16 times. It is ahead of FIRE at every "
        "length, and of KERPLE up to eight times."
    ) in page
    lengths = [256 * 2**n for n in range(5)]
    assert all(larger(n, ("fire", "fire_g")) > 0 for n in lengths)
    assert [larger(n, ("kerple_log", "fire_g")) > 0 for n in lengths] == [True] * 4 + [False]
    arms = ("fire", "fire_g", "rope", "kerple_log", "alibi")
    best = [min(arms, key=lambda arm: mean_loss("larger", arm, n)) for n in lengths]
    assert best == ["fire_g"] * 2 + ["alibi"] * 3
    for arm in ("alibi", "kerple_log"):
        falling = [mean_loss("larger", arm, n) for n in lengths]
        assert falling == sorted(falling, reverse=True)
    ahead, twice = larger(512, ("kerple_log", "fire")), larger(512, ("fire", "alibi"))
    four, sixteen = (
        [larger(n, ("fire", other)) for other in ("kerple_log", "alibi")] for n in (1024, 4096)
    )
    assert (
        f"At twice the training length, it is {ahead:.3f} ahead of KERPLE and {twice:.3f} behind "
        f"ALiBi; at four times {four[0]:.3f} and {four[1]:.3f} behind, and at 16 times "
        f"{sixteen[0]:.3f} and {sixteen[1]:.3f}."
    ) in page
    rope, alibi, kerple = (larger(256, (o, "fire")) for o in ("rope", "alibi", "kerple_log"))
    there = difference("mini", 64, ("fire", "rope"))
    assert (
        f"FIRE is {rope:.3f} ahead of RoPE**, as in the paper, whereas at the quick start's scale "
        f"RoPE is {there:.3f} ahead. FIRE is {alibi:.3f} ahead of ALiBi and {kerple:.3f} ahead of "
        "KERPLE."
    ) in page


def test_the_documentation_says_what_the_runs_on_a_gpu_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    behind = {
        (worse, other): f"{difference('gpu', 512, (worse, other)):.3f}"
        for worse, other in itertools.product(("fire", "fire_g"), ("rope", "alibi", "kerple_log"))
    }
    gain = difference("gpu", 512, ("fire", "fire_g"))
    assert (
        f"It is {behind['fire', 'rope']} behind RoPE, {behind['fire', 'alibi']} behind ALiBi and "
        f"{behind['fire', 'kerple_log']} behind KERPLE; FIRE-G is {gain:.3f} ahead of FIRE and "
        f"{behind['fire_g', 'rope']} behind RoPE."
    ) in page
    training = {(row.encoding, row.step): row.loss for row in results_of("gpu").training}
    early = [training[name, 200] for name in ("rope", "alibi", "kerple_log")]
    assert (
        f"at step 200, their training losses are {training['fire', 200]:.2f} and "
        f"{training['fire_g', 200]:.2f}, those of the others {min(early):.2f} to {max(early):.2f}."
    ) in page
    at_600 = [loss for (_, step), loss in training.items() if step == 600]
    assert 0.07 < max(at_600) - min(at_600) < 0.08
    gaps = [training["fire", step] - training["rope", step] for step in (600, 1300)]
    assert (
        "At step 600, all five are within 0.08 of each other. The gap in training loss between "
        f"FIRE and RoPE shrinks from {gaps[0]:.3f} at step 600 to {gaps[1]:.3f} at step 1,300"
    ) in page
    arms = ("rope", "alibi", "kerple_log", "fire", "fire_g")
    spreads = [statistics.stdev(losses("mini", name, 64).values()) for name in arms]
    assert f"seeds differ by {min(spreads):.3f} to {max(spreads):.3f} (standard dev" in page
    far = [max(losses("gpu", name, 2048).values()) for name in ("alibi", "kerple_log")]
    assert all(
        loss < mean_loss("gpu", name, 1024) < mean_loss("gpu", name, 512)
        for name, loss in zip(("alibi", "kerple_log"), far, strict=True)
    )
    apart = [difference("gpu", n, ("kerple_log", "alibi")) for n in (512, 1024, 2048)]
    assert f"and differ by at most {max(map(abs, apart)):.3f}." in page


def test_the_documentation_says_what_the_ablations_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    parts = functools.partial(difference, "fire_ablations")
    for length in (64, 128, 256, 512, 1024):
        assert parts(length, ("fire_eq22", "fire")) > 0
        assert parts(length, ("fire_eq21", "fire_eq22")) > 0
    for length in (64, 128):
        assert 0 < parts(length, ("fire_1_hidden", "fire")) < parts(length, ("fire_affine", "fire"))
    assert max(abs(parts(n, ("fire_gelu", "fire"))) for n in (64, 128, 256)) < 0.0085
    for better, worse, text, lengths in (
        ("fire_1_hidden", "fire", "of one hidden layer is {} and {} nats below that", (512, 1024)),
        ("fire_gelu", "fire", "GeLU's mean is {} and {} nats lower, within noise", (512, 1024)),
        ("fire_1_hidden", "fire_final_activation",
         "costs {} nats at the training length and {} at 16 times", (64, 1024)),
    ):  # fmt: skip
        assert text.format(*(f"{parts(n, (worse, better)):.3f}" for n in lengths)) in page
    family = (DOCS / "encodings.md").read_text()
    for name, text in (
        ("fire_eq21", "rises from x2 on, {} nats behind `fire` at x16"),
        ("fire_eq22", "{} nats behind `fire`; from x4 on"),
        ("fire_affine", "rises from x2 on, {} nats behind `fire` at x16"),
    ):
        found = f"{parts(1024, (name, 'fire')):.2f}"
        assert f"`{name}`: {text.format(found)}" in family


def test_the_documentation_says_what_the_seeds_of_the_ablations_cannot_tell_apart():
    page = " ".join((DOCS / "results.md").read_text().split())
    (listed,) = re.findall(r"These cannot be told apart: (.*?)\. - ", page)
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
    assert unclear("fire_ablations", "fire_final_activation", "fire") == [512, 1024]
    family = (DOCS / "encodings.md").read_text()
    assert "about 0.05 nats behind `fire` up to x4, indistinguishable beyond" in family


def test_the_documentation_says_what_the_family_found():
    """The comparison with FIRE requires that all runs were scored on the same text."""
    folders = [results_of(name) for name in ("fire_ablations", "family")]
    assert len({found.texts.of(row) for found in folders for row in found.losses}) == 1
    ahead = {
        (arm, n): mean_loss("fire_ablations", "fire", n) - mean_loss("family", arm, n)
        for arm in ("sandwich", "kerple_power", "xpos")
        for n in (64, 1024)
    }
    page = " ".join((DOCS / "results.md").read_text().split())
    widths = [interval("family", 1024, "fire", arm, 2) for arm in ("sandwich", "kerple_power")]
    assert f"they are {widths[0]} and {widths[1]} nats ahead of FIRE. Up to twice" in page
    assert [unclear("family", arm, "fire") for arm in ("sandwich", "kerple_power")] == [
        [64, 128]
    ] * 2
    assert unclear("family", "xpos", "fire") == [64]
    assert ahead["xpos", 64] > 0
    behind = [
        mean_loss("family", "sinusoidal", n) - mean_loss("fire_ablations", "fire", n)
        for n in (64, 128)
    ]
    assert (
        f"are {behind[0]:.3f} nats behind FIRE at the training length and {behind[1]:.3f} at twice"
    ) in page


def test_the_documentation_says_what_training_at_a_quarter_of_the_length_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    beside = functools.partial(difference, "short")
    for length in (16, 32):
        for name in ("kerple_log", "alibi", "t5", "nope"):
            assert beside(length, (name, "fire")) > 0
    for length in (16, 32):
        assert all(length not in unclear("short", name, "fire") for name in ("alibi", "t5", "nope"))
    assert unclear("short", "rope", "fire") == [16, 32]
    assert unclear("short", "kerple_log", "fire") == [32]
    kerple = [interval("short", n, "fire", "kerple_log") for n in (64, 256)]
    assert f"by {kerple[0]} nats at four times and {kerple[1]} at 16 times" in page
    assert unclear("short", "alibi", "fire") == [128, 256]
    names = ["kerple_log", "alibi", "fire", "nope", "t5", "rope"]
    for study, length in (("short", 256), ("mini", 1024)):
        assert sorted(names, key=lambda name: mean_loss(study, name, length)) == names


def test_the_documentation_says_what_resampled_positions_and_log_n_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    lengths = (64, 128, 256, 512, 1024)
    equal_mean, drawn = ", resampling ExponentialPositions", ", resampling RandomizedPositions"

    def change(name: str, with_it: str, without: str = "") -> dict[int, float]:
        return {n: difference("resampling", n, (name + with_it, name + without)) for n in lengths}

    spread, random = change("rope", equal_mean), change("rope", drawn)
    assert max(spread[n] for n in lengths[2:]) < 0 and max(random[n] for n in lengths[2:]) < 0
    assert f"by {-spread[256]:.3f} nats at four times and {-spread[512]:.3f} at eight times" in page
    assert f"random positions by {-random[256]:.3f} and {-random[512]:.3f}. At" in page
    assert f"they cost {spread[64]:.3f} and {random[64]:.3f} nats" in page
    spread, random = change("fire", equal_mean), change("fire", drawn)
    assert f"they cost {spread[64]:.3f} nats at the training length" in page
    assert f"{-spread[512]:.3f} nats at eight times and {-spread[1024]:.3f} at 16 times" in page
    assert f"by {min(random.values()):.3f} to {max(random.values()):.3f} nats" in page
    log_n = [
        change("rope", f"{positions}, log_n LogN", positions)
        for positions in ("", equal_mean, drawn)
    ]
    largest = max(abs(value) for values in log_n for value in values.values())
    assert f"RoPE's loss by at most {largest:.3f} nats" in page
    arms = [f"rope{positions}" for positions in ("", equal_mean, drawn)]
    clear = [set(lengths) - set(unclear("resampling", f"{a}, log_n LogN", a)) for a in arms]
    assert clear == [set(), set(), {512}]
    assert f"by {interval('resampling', 1024, 'fire, log_n LogN', 'fire')} nats at 16 ti" in page
    assert unclear("resampling", "fire, log_n LogN", "fire") == [64]
    assert unclear("resampling", f"fire{equal_mean}", "fire") == [256]
    both = [
        interval("resampling", 512, f"{name}{equal_mean}, log_n LogN", f"{name}{equal_mean}")
        for name in ("rope", "fire")
    ]
    assert (
        f"with RoPE is {both[0]} nats higher, which is within noise, and with FIRE {both[1]}"
        in page
    )


def test_the_documentation_says_what_scalings_and_log_n_at_evaluation_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    lengths = (128, 256, 512, 1024)

    def change(name: str, variant: str) -> dict[int, float]:
        return {n: difference("scalings", n, (f"{name}+{variant}", name)) for n in lengths}

    yarn, ntk, interpolated = (change("rope", name) for name in ("yarn", "ntk", "pi"))
    assert all(yarn[n] < ntk[n] < 0 < interpolated[n] for n in lengths)
    assert unclear("scalings", "rope (yarn)", "rope (ntk)") == [64, 128]
    assert change("rope", "dynamic_ntk") == pytest.approx(ntk, abs=1e-4)
    assert f"by {-yarn[256]:.3f} nats at four times and {-yarn[1024]:.3f} at 16 times" in page
    assert f"lower it by {-ntk[256]:.3f} and {-ntk[1024]:.3f} nats" in page
    assert f"length, by {interpolated[256]:.3f} nats at four times" in page
    tuned = [mean_loss("scalings", name, 256) for name in ("rope_pi", "rope_yarn")]
    assert f"reaches {tuned[0]:.3f} nats and YaRN, with fewer steps, {tuned[1]:.3f}" in page
    for name in ("rope_pi", "rope_yarn"):
        assert difference("scalings", 1024, (name, "rope+yarn")) > 0
    largest = max(abs(value) for value in change("rope", "log_n-clipped").values())
    assert f"RoPE's loss by at most {largest:.3f} nats" in page
    logits, bias = change("fire", "log_n-clipped"), change("fire", "log_n-clipped-bias")
    assert f"by {logits[1024]:.3f} nats at 16 times the training length; the bias alone" in page
    assert f"by {-bias[512]:.3f} and {-bias[1024]:.3f} nats at eight and 16 times" in page
    drift = mean_loss("scalings", "fire", 1024) - mean_loss("scalings", "fire", 64)
    assert f"This removes {-100 * bias[1024] / drift:.0f} % of FIRE's drift" in page


def test_the_documentation_says_what_mixed_schedules_found():
    page = " ".join((DOCS / "results.md").read_text().split())
    beside = functools.partial(difference, "schedules")
    longer = (128, 256, 512, 1024)
    assert all(beside(n, ("fire_and_rope", "fire")) > 0 for n in longer)
    assert all(beside(n, ("rope", "fire_and_rope")) > 0 for n in longer)
    own = functools.partial(interval, "schedules", 1024)
    assert (
        f"distances are {own('fire_and_rope', 'fire')} to FIRE, which is within noise, and "
        f"{own('rope', 'fire_and_rope')} to RoPE."
    ) in page
    names = ("fire", "rope", "fire_and_rope", "nope_every_4th")
    assert all(64 in unclear("schedules", *pair) for pair in itertools.combinations(names, 2))
    assert unclear("schedules", "nope_every_4th", "rope") == [64, *longer]
    assert f"its mean is {own('nope_every_4th', 'rope')} nats higher at 16 times" in page
