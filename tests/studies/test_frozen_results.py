"""README.md and docs/frozen_normaliser.md agree with the evidence on the frozen normaliser."""

from pathlib import Path

import pytest
from study_pairs import interval, line_of, lines_of, pair, unclear
from test_evidence import table_of

from fire_lm.cli import main
from fire_lm.reporting.length_sweep import effective_lengths

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = ROOT / "docs" / "evidence" / "frozen"
FIGURE = "losses_python_packages_validation_concat.svg"
FROZEN = "fire (normalizer_limit-64)"
LENGTHS = (64, 128, 256, 512, 1024)
PAGE = (ROOT / "docs" / "frozen_normaliser.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.ci
def test_the_table_and_the_figure_are_those_of_the_evidence(tmp_path):
    assert main(["report", str(EVIDENCE), f"--output={tmp_path}"]) == 0
    table = table_of((tmp_path / "report.md").read_text())
    assert len(table.splitlines()) == 2 + 7
    assert table in PAGE and table in README
    assert (tmp_path / FIGURE).read_bytes() == (EVIDENCE / FIGURE).read_bytes()
    assert FIGURE in PAGE and f"(docs/evidence/frozen/{FIGURE})" in README


def test_freezing_removes_the_drift():
    assert unclear("frozen", FROZEN, "fire") == [64]  # the same loss, by definition
    assert pair("frozen", 64, FROZEN, "fire").value == 0
    gains = {n: interval("frozen", n, "fire", FROZEN) for n in LENGTHS}
    words = " ".join(PAGE.split())
    assert (
        f"by {gains[128]} at twice the training length, {gains[256]} at four times and "
        f"{gains[1024]} at 16 times"
    ) in words
    losses = [line_of("frozen", FROZEN).nats[n].value for n in LENGTHS]
    assert losses == sorted(losses, reverse=True)
    drift = [line_of("frozen", "fire").nats[n].value for n in LENGTHS]
    assert drift[1] < drift[2] < drift[3] < drift[4]


def test_what_is_said_of_other_encodings():
    words = " ".join(PAGE.split())
    assert (
        unclear("frozen", FROZEN, "kerple_log") == unclear("frozen", "fire_t", "kerple_log") == []
    )
    for arm in (FROZEN, "fire_t"):
        assert all(pair("frozen", n, arm, "kerple_log").value < 0 for n in LENGTHS)
        assert interval("frozen", 1024, "kerple_log", arm) in words
    assert unclear("frozen", "fire_t", FROZEN) == [64, 128, 256, 512]
    assert unclear("frozen", "fire_t", "fire_g") == [64, 128, 256, 512]
    for other in (FROZEN, "fire_g"):
        assert interval("frozen", 1024, other, "fire_t") in words
    assert f"{interval('frozen', 64, 'fire_t', 'rope')} ahead of FIRE-T" in words
    lowest = {
        min(
            ("fire_t", FROZEN, "fire_g", "kerple_log"),
            key=lambda a: line_of("frozen", a).nats[n].value,
        )
        for n in LENGTHS[1:]
    }
    assert lowest == {"fire_t"}


def test_freezing_lengthens_fire_in_the_evidence():
    lines = list(lines_of("frozen").values())
    table = effective_lengths(lines, nats=True)
    found = {name: (length, by_seed) for name, length, by_seed in table.rows}
    assert found["fire"] == ("128", "128, 128, 128")
    assert found["rope"][0] == "64"
    for name in ("fire_t", "fire (normalizer_limit-64)", "kerple_log", "alibi"):
        assert found[name][0] == "at least 1024"
    assert "0.02 nats per token" in table.caption
