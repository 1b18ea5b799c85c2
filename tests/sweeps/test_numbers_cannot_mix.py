"""No order of `sweep` calls mixes texts or runs in a table, figure or file.

This is so whatever is renamed, copied or removed between the calls.
"""

import dataclasses
import importlib
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from sample_sweeps import FILES, RUNS, Sweeps, files_of, is_of, spellings

from fire_lm.reporting.length_sweep import sweep_text
from fire_lm.reporting.loss_curves import position_lines
from fire_lm.reporting.losses import differences, loss_lines, scored_in
from fire_lm.results import PositionLoss, ScoredText, SweepRow, Texts, read_table, write_table
from fire_lm.results.folder import Results
from fire_lm.results.scored_text import FILE as TEXTS_FILE

module = importlib.import_module("fire_lm.measures.length_sweep")

LENGTHS = ("8", "12,64", "16,32", "8,16,64", "32,12")
BUDGETS = (1024, 2048, 2080, 2112)  # the second and third give the same text
ALSO = (
    "--gin.RoPE.scaling=@YaRN()",
    "--gin.length_sweep.split=train",
    "--gin.CONSTRUCTION=cut",
    "--gin.length_sweep.protocols=sliding --gin.length_sweep.stride=4",
)


KINDS: dict[str, Any] = dict(zip(FILES, (SweepRow, ScoredText, PositionLoss), strict=True))


def any_call(draw: random.Random, sweeps: Sweeps) -> tuple[list[Path], list[str], list[str], str]:
    """Draw a call: return its runs, their names on the command line, flags and the output."""
    folder, there = sweeps.folder, sweeps.runs()
    runs = draw.choice((there, there[:1], there[1:2], draw.sample(there, 2)))
    at = draw.choice(("", "@1", "@2", "@all"))
    named = [draw.choice(spellings(run)) + at for run in runs]
    if runs == there:
        named = [str(folder)]
    flags = [
        f"--gin.EVAL_LENGTHS={draw.choice(LENGTHS)}",
        f"--gin.length_sweep.tokens={draw.choice(BUDGETS)}",
        f"--gin.length_sweep.position_bins={draw.choice((0, 4))}",
        *(f"--also={also}" for also in draw.sample(ALSO, draw.choice((0, 0, 1, 2)))),
    ]
    output = ""
    if len(named) > 1 or draw.random() < 0.4:
        output = draw.choice(("one", "two", draw.choice((*runs, *there)).name))
        flags.append(f"--output={draw.choice(spellings(folder / output))}")
    return runs, named, flags, output


def tamper(draw: random.Random, sweeps: Sweeps) -> None:
    """Change the folder as users and older versions do.

    Users move a file away, copy another run's file over it, or rename or copy a run. Older versions
    scored a renamed run again.
    """
    written = [run / name for run in sweeps.runs() for name in FILES if (run / name).exists()]
    if not written:
        return
    file = draw.choice(written)
    how = draw.choice(("remove", "copy", "copy", "rename", "copy the run", "older"))
    run = file.parent
    other = draw.choice([path for path in sweeps.runs() if path != run])
    free = next(new for n in itertools.count() if not (new := run.with_name(f"run{n}")).exists())
    # Hand-copied rows of another seed cannot be distinguished from rows of a renamed run.
    seeds = file.name == FILES[0] and RUNS[is_of(run)][0] == RUNS[is_of(other)][0]
    if how == "remove":
        file.unlink()
    elif how == "copy" and not seeds:
        shutil.copy(file, other)
    elif how == "rename":
        run.rename(free)
    elif how == "copy the run" and len(sweeps.runs()) < 5:
        shutil.copytree(run, free)
    elif how == "older":
        for name, kind in KINDS.items():
            path = epath.Path(run) / name
            rows = read_table(path, kind)
            write_table(path, kind, [*rows, *(dataclasses.replace(r, run="older") for r in rows)])


def check_table(sweeps: Sweeps, results: Results) -> None:
    """Check that a line has one text, and so has a table in nats unless its text is not recorded.

    Each row must occur once and belong to the run that it states.
    """
    said = sweep_text(results)
    assert len({row.key for row in results.losses}) == len(results.losses)
    for one in results.losses:
        assert not one.tokens or sweeps.scorer(one) == is_of(sweeps.folder / one.run)
    for runs in results.arms().values():
        assert len({is_of(sweeps.folder / run.run) for run in runs}) == len(runs)
    rows_of = {
        (row.run, row.step, row.variant, scored_in(row), row.length): row for row in results.losses
    }
    for scored, lines in loss_lines(results).items():
        true: dict[str, set[bytes]] = {}
        for line in lines:
            runs_of = [run.run for run in results.arms()[line.arm]]
            rows = [
                row
                for run, n in itertools.product(runs_of, line.points)
                if (row := rows_of.get((run, line.step, line.variant, scored, n)))
                and results.texts.of(row) == line.text
            ]
            assert rows
            true.setdefault(line.text, set()).update(map(sweeps.truth, rows))
        apart = differences((r for r in results.losses if scored_in(r) == scored), results.texts)
        assert all(len(texts) == 1 for text, texts in true.items() if text)
        assert apart or len(true) == 1
        assert "" not in true or "not recorded" in said
        assert not apart or "in bits per byte only" in said
    assert len({(one.key, one.first) for one in results.positions}) == len(results.positions)
    unknown = "" in results.texts.of_all_positions(results.positions).values()
    assert unknown == any("not recorded" in name for name in position_lines(results))


def check_files(sweeps: Sweeps, folder: Path, report: Results) -> None:
    """Check that rows have the same text if and only if they have the same identity.

    This includes losses by position. In the folder of several runs, these belong to its rows, and
    each occurs once; in a run's folder, a name has one text, and the report has the folder's rows.
    """
    rows, texts = (
        read_table(epath.Path(folder) / FILES[0], SweepRow),
        Texts(read_table(epath.Path(folder) / TEXTS_FILE, ScoredText)),
    )
    true = {(texts.of(row), sweeps.truth(row)) for row in rows if texts.of(row)}
    assert len(true) == len({text for text, _ in true}) == len({text for _, text in true})
    by_text = dict(true)
    sums: dict[tuple[str | int, ...], list[float]] = {}
    bins = read_table(epath.Path(folder) / FILES[2], PositionLoss)
    for one in bins:
        found = sums.setdefault(one.key, [0.0, 0.0])
        found[0], found[1] = found[0] + one.nll * one.tokens, found[1] + one.tokens
    of = texts.of_all_positions(bins)
    for key, (nats, tokens) in sums.items():
        if of[key] in by_text:
            near = [mean for mean in sweeps.true if abs(float(mean) - nats / tokens) < 1e-6]
            assert {sweeps.true[mean][1] for mean in near} == {by_text[of[key]]}
    if folder not in sweeps.runs():
        assert {(one.run, one.step) for one in bins} <= {(row.run, row.step) for row in rows}
        assert len({row.key for row in rows}) == len(rows)
        assert len({(one.key, one.first) for one in bins}) == len(bins)
        return
    named: dict[tuple[str | int, ...], set[str]] = {}
    for row in rows:
        if row.tokens and sweeps.scorer(row) == is_of(folder):
            named.setdefault(row.key[4:8], set()).add(texts.of(row))
    assert all(len(found - {""}) <= 1 for found in named.values())
    assert not named or folder.name in {row.run for row in report.losses}


@pytest.mark.ci
def test_no_order_of_sweeps_mixes_texts(tmp_path, capsys, monkeypatch):
    refused = itself = 0
    for seed in range(50):
        draw = random.Random(seed)
        sweeps = Sweeps(tmp_path / str(seed), monkeypatch)
        for later in range(draw.randint(2, 4)):
            if later and draw.random() < 0.6:
                tamper(draw, sweeps)
            runs, names, flags, output = any_call(draw, sweeps)
            before, computed = files_of(sweeps.runs()), dict(sweeps.true)
            problem = sweeps(names, *flags)
            refused += "scored on another text" in problem
            after = files_of(sweeps.runs())
            if sweeps.folder / output in sweeps.runs() and [sweeps.folder / output] != runs:
                itself += 1
                assert "is itself a run" in problem
                assert after == before and sweeps.true == computed
            else:
                assert "is itself a run" not in problem
            for path, lines in before.items():  # the text of a removed row may be dropped
                assert path.name == FILES[1] or set(lines) <= set(after[path]), "lost"
            report = sweeps.report()
            for results in (*sweeps.shown, report):
                check_table(sweeps, results)
            sweeps.shown.clear()
            for folder in (*sweeps.runs(), *(sweeps.folder / name for name in ("one", "two", "."))):
                check_files(sweeps, folder, report)
    assert 10 < refused < 130 and 5 < itself < 50, "some are refused, some are not"
    capsys.readouterr()


def test_two_sweepers_at_once_cannot_write_two_texts(tmp_path, capsys, monkeypatch):
    """One starts with another budget while the other is computing its first row."""
    sweeps = Sweeps(tmp_path, monkeypatch)
    run, score, begun = str(tmp_path / "fire"), sweeps.score, []

    def score_meanwhile(*arguments):
        if not begun:
            begun.append("the other")
            begun.append(sweeps([f"{run}@1"], "--gin.EVAL_LENGTHS=[8]", TOKENS))
        return score(*arguments)

    monkeypatch.setattr(module, "row_losses", score_meanwhile)
    told = sweeps([f"{run}@2"], "--gin.EVAL_LENGTHS=[8]", "--gin.length_sweep.tokens=1024")
    assert "another sweep" in told and "another text of the same name" in told and begun[1:] == [""]
    assert {row.step for row in read_table(epath.Path(run) / FILES[0], SweepRow)} == {1}
    check_files(sweeps, Path(run), sweeps.report())
    capsys.readouterr()


TOKENS = "--gin.length_sweep.tokens=2048"


def test_subsets_and_extensions_are_the_same_text(tmp_path, capsys, monkeypatch):
    """One call for each subset, in any order, gives the rows of one sweep of all lengths."""
    apart, once = Sweeps(tmp_path / "apart", monkeypatch), Sweeps(tmp_path / "once", monkeypatch)
    run = str(tmp_path / "apart" / "fire")
    for lengths in ([16], [64], [8, 16], [32, 8]):
        assert apart([run], TOKENS, f"--gin.EVAL_LENGTHS={lengths}") == ""
    assert once([str(tmp_path / "once" / "fire")], TOKENS, "--gin.EVAL_LENGTHS=8,16,32,64") == ""
    found = [
        sorted((row.length, row.tokens, round(row.nll, 9)) for row in read_table(path, SweepRow))
        for path in (epath.Path(tmp_path) / name / "fire" / FILES[0] for name in ("apart", "once"))
    ]
    assert found[0] == found[1] and len(found[0]) == 4
    assert "the same text at every length (text " in sweep_text(once.shown[0])
    capsys.readouterr()
