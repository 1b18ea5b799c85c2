"""Whose rows a folder contains: runs as --output, renamed, copied, and next to older files."""

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from sample_sweeps import Sweeps, files_of, module, spellings

from fire_lm import cli
from fire_lm.errors import RunFailed
from fire_lm.measures import SweepResult
from fire_lm.reporting.differences import difference
from fire_lm.reporting.losses import loss_lines
from fire_lm.results import SweepRow, merge_table, read_table, scored_text, write_table
from fire_lm.results.tables import PositionLoss
from fire_lm.runs.saved import best_steps
from fire_lm.sweeps import schedule
from fire_lm.sweeps.claims import claimed_when_free

SHORT, LONGER = ("--gin.EVAL_LENGTHS=8,16", "--gin.length_sweep.tokens=2048"), 32


@pytest.fixture
def sweeps(tmp_path, monkeypatch) -> Sweeps:
    found = Sweeps(tmp_path / "runs", monkeypatch)
    assert found([f"{found.folder / 'fire'}@all"], *SHORT) == ""
    return found


def test_steps_of_the_same_runs_are_not_compared_as_independent_runs(sweeps, capsys):
    """They are paired by run; where only some of the runs are the same, there is no test."""
    names = [str(sweeps.folder / name) for name in ("fire@all", "fire-1@all", "rope@2")]
    assert sweeps(names, *SHORT, f"--output={sweeps.folder / 'all'}") == ""
    names[1] = names[1].replace("@all", "@2")
    assert sweeps(names, *SHORT, f"--output={sweeps.folder / 'some'}") == ""
    every, some = (next(iter(loss_lines(results).values())) for results in sweeps.shown[-2:])
    for lines in (every, some):
        arms = {line.name: line.points[16] for line in lines}
        assert list(arms) == ["fire, step 1", "fire, step 2", "rope, step 2"]
        found = difference(arms["fire, step 1"], arms["fire, step 2"])
        assert found.same_runs == (lines is some)
        assert [count for _, count in found.seeds] == [2] * (lines is every)
    assert capsys.readouterr().out.count("t test, lines of the same runs in pairs, over") == 1


@pytest.mark.parametrize("swept", [["fire", "rope"], ["rope"], ["rope", "fire-1"]])
def test_a_run_is_no_output_of_others(sweeps, swept, capsys):
    """Nothing is computed or written, and the message suggests a folder that works."""
    computed, before = len(sweeps.true), files_of(sweeps.runs())
    names = [str(sweeps.folder / name) for name in swept]
    for output in spellings(sweeps.folder / "fire"):
        assert cli.main(["sweep", *names, *SHORT, f"--output={output}"]) == 2
        told = capsys.readouterr().err
        assert f"--output={output} is itself a run" in told
    assert files_of(sweeps.runs()) == before and len(sweeps.true) == computed
    instead = told.strip().rpartition("--output=")[2]
    assert sweeps(names, *SHORT, f"--output={instead}") == ""
    assert {
        row.run for row in read_table(epath.Path(instead) / "length_sweep.csv", SweepRow)
    } == set(swept)
    capsys.readouterr()


def test_a_figure_that_cannot_be_drawn_does_not_fail_the_sweep(sweeps, capsys, monkeypatch):
    def broken(*_: Any) -> None:
        raise RuntimeError("no fonts")

    monkeypatch.setattr("fire_lm.cli.sweep_tables.write_figure", broken)
    output = sweeps.folder.parent / "table"
    assert sweeps([str(sweeps.folder / "fire")], *SHORT, f"--output={output}") == ""
    told = f"{output}/length_sweep.png cannot be written: no fonts; the tables are written"
    assert told in capsys.readouterr().err
    assert read_table(epath.Path(output) / "length_sweep.csv", SweepRow)


def test_a_run_that_has_not_begun_is_no_output_of_others(sweeps, capsys, monkeypatch):
    """Otherwise the followed runs would fill its folder before it exists."""

    def wait(seconds):
        raise RunFailed("it goes on")

    monkeypatch.setattr(schedule.time, "sleep", wait)
    late = sweeps.folder / "late"
    names = [str(late), str(sweeps.folder / "rope")]
    assert "is itself a run" in sweeps(names, *SHORT, "--follow", f"--output={late}")
    assert not late.exists() and "waiting for the run" in capsys.readouterr().out


def test_its_own_folder_is_an_output_that_changes_nothing(sweeps, capsys):
    run = sweeps.folder / "fire"
    before = files_of([run])
    for output in spellings(run):
        assert sweeps([f"{run}@2"], *SHORT, f"--output={output}") == ""
    for name in spellings(run):
        assert sweeps([f"{name}@2"], *SHORT, f"--output={run}") == ""
    assert files_of([run]) == before and {row.step for row in rows(run)} == {1, 2}
    capsys.readouterr()


def rows(run: Path) -> list[SweepRow]:
    return read_table(epath.Path(run) / "length_sweep.csv", SweepRow)


def test_a_renamed_run_is_one_run(sweeps, capsys):
    """Its rows are not computed again, its report shows one seed, and its text stays the same."""
    renamed = (sweeps.folder / "fire").rename(sweeps.folder / "renamed")
    computed = len(sweeps.true)
    assert sweeps([f"{renamed}@2"], *SHORT, f"--gin.EVAL_LENGTHS=8,16,{LONGER}") == ""
    assert len(sweeps.true) == computed + 1, "the longer length alone"
    for results in (sweeps.shown[-1], sweeps.report()):
        lines = [line for found in loss_lines(results).values() for line in found]
        assert [sorted(line.points) for line in lines] == [[8, 16, LONGER]]
        assert all(point.runs == 1 for line in lines for point in line.points.values())
    again = renamed.rename(sweeps.folder / "again")
    told = sweeps([str(again)], *SHORT, "--gin.length_sweep.tokens=4096")
    assert (
        "has again@1 at length 8, scored on another text" in told
        and len(sweeps.true) == computed + 1
    )
    capsys.readouterr()


def test_rows_written_under_two_names_count_once(sweeps, capsys):
    """Older versions, which scored a renamed run again, could write such rows."""
    run = sweeps.folder / "fire"
    for kind, name in ((SweepRow, "length_sweep.csv"), (PositionLoss, "position_losses.csv")):
        path = epath.Path(run) / name
        found = read_table(path, kind)
        earlier = [dataclasses.replace(row, run="earlier", nll=9.0) for row in found]
        merge_table(path, kind, earlier)
    results = sweeps.report()
    assert len(rows(run)) == 8 and len(results.losses) == 2, "of the newest step"
    assert len({(one.first, one.step) for one in results.positions}) == len(results.positions) > 0
    assert {row.nll for row in (*results.losses, *results.positions)} & {9.0} == set()
    capsys.readouterr()


def test_a_copy_of_a_run_is_no_second_seed(sweeps, capsys):
    shutil.copytree(sweeps.folder / "fire", sweeps.folder / "copy")
    for name, of in (("rope", 1), ("fire-1", 2)):
        shutil.rmtree(sweeps.folder / name)
        arms = sweeps.report().arms()
        assert {"fire of copy", "fire of fire"} <= set(arms) and len(arms) == 4 - of
        assert all(len(runs) == 1 for runs in arms.values())
    capsys.readouterr()


def test_rows_of_another_encoding_are_not_the_runs_own(sweeps, capsys):
    """Older versions left such rows in a run that was the --output of others."""
    fire, rope = sweeps.folder / "fire", sweeps.folder / "rope"
    assert sweeps([f"{rope}@all"], *SHORT) == ""
    theirs = [dataclasses.replace(row, step=9, nll=0.1) for row in rows(rope)]
    write_table(epath.Path(fire) / "length_sweep.csv", SweepRow, [*rows(fire), *theirs])
    capsys.readouterr()
    results = sweeps.report()
    assert {row.encoding for row in results.losses if row.run == "fire"} == {"fire"}
    told = capsys.readouterr().out
    assert "ignoring rows of rope in" in told and "the encoding of this run is fire" in told
    assert best_steps(epath.Path(fire), "fire") == [1, 2], "9 has the least loss"
    assert sweeps([f"{fire}@all"], *SHORT, f"--output={sweeps.folder / 'one'}") == ""
    assert {row.encoding for row in rows(sweeps.folder / "one")} == {"fire"}
    capsys.readouterr()


def test_rows_under_an_earlier_name_of_the_encoding_return_when_renamed_as_told(sweeps, capsys):
    """A run that was named by the wrong file has another name after it is resumed."""
    fire = sweeps.folder / "fire"
    before = sweeps.report().losses
    for name in ("length_sweep.csv", "scored_text.csv"):
        text = (fire / name).read_text()
        (fire / name).write_text(text.replace("fire,fire,", "fire,nope,"))
    assert not [row for row in sweeps.report().losses if row.run == "fire"]
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "if the encoding of this run had that name before, replace the name in the column" in told
    )
    for name in ("length_sweep.csv", "scored_text.csv"):
        text = (fire / name).read_text()
        (fire / name).write_text(text.replace("fire,nope,", "fire,fire,"))
    assert sweeps.report().losses == before
    capsys.readouterr()


def test_losses_by_position_are_of_the_rows_beside_them(sweeps, capsys):
    """The folder first has the rows of a run with such losses, then of a run without any."""
    one = sweeps.folder / "one"
    path = one / "position_losses.csv"
    assert sweeps([str(sweeps.folder / "fire")], *SHORT, f"--output={one}") == ""
    assert path.exists()
    bins = "--gin.length_sweep.position_bins=0"
    assert sweeps([str(sweeps.folder / "rope")], *SHORT, bins, f"--output={one}") == ""
    assert not path.exists() and {row.run for row in rows(one)} == {"rope"}
    capsys.readouterr()


def test_two_writers_of_two_texts_do_not_both_pass(tmp_path, monkeypatch):
    """One writer looks at the existing rows while the other is between its look and its row."""
    folder = epath.Path(tmp_path)
    place: tuple[Any, ...] = (folder.name, "fire", "", 1, "c4", "validation", "concat", "full")
    failures: list[RunFailed] = []

    def write(length: int, text: str) -> None:
        counted: tuple[Any, ...] = (length, 1, 2, 3, 1.0 + length, 0.1, 2.7, 1.4)
        row = SweepRow(*place, *counted)
        line = scored_text(row, text, np.ones(1, np.int64), np.ones(1))
        try:
            with claimed_when_free(folder, "rows") as still_ours:
                module.write_result(folder, SweepResult(line, [], row), still_ours)
        except RunFailed as error:
            failures.append(error)

    other = threading.Thread(target=write, args=(16, "b" * 16))

    def meanwhile(*arguments, **settings):
        if other.ident is None:
            other.start()
            other.join(timeout=0.3)
        return merge_table(*arguments, **settings)

    monkeypatch.setattr(module, "merge_table", meanwhile)
    write(8, "a" * 16)
    other.join()
    assert len(failures) == 1 and "run both sweeps with the same" in str(failures[0])
    assert [row.length for row in rows(tmp_path)] == [8]
