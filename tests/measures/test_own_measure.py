"""A measure outside the package, as in docs/add_a_measure.md: run once, resumed, refused."""

import dataclasses
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from etils import epath
from jax.sharding import Mesh
from sample_run import command, write_text

from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment
from fire_lm.experiment.own_measure import measure_class
from fire_lm.measures import Cell, Measure, RunModel, ValueByLength
from fire_lm.measures.masked_accuracy import MaskedAccuracy
from fire_lm.results import Keyed, read_table
from fire_lm.storage import LeaseLost
from fire_lm.sweeps.claims import claimed
from fire_lm.sweeps.command import compute, compute_cells
from fire_lm.sweeps.settings import Setting

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_measure.md").read_text()


@pytest.mark.ci
def test_the_example_of_the_documentation(tmp_path, monkeypatch, capsys):
    """Its commands measure, resume and draw; the values are means of distances up to a length."""
    commands, code = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "attention_distance.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = tmp_path / "runs" / "quickstart"
    assert main(command(write_text(tmp_path / "text"), run, position="rope")) == 0
    lines = commands.replace("runs/quickstart", str(run)).splitlines()
    evaluate, report = (shlex.split(line)[1:] for line in lines)
    capsys.readouterr()
    assert main([*evaluate, "--dry_run"]) == 0
    assert "attention_distance; 3 of 3 results to compute" in capsys.readouterr().out
    also = "--also=--gin.RoPE.scaling=@YaRN()"
    assert main([*evaluate, also]) == 0, capsys.readouterr().err
    table = epath.Path(run) / "measures" / "attention_distance.csv"
    rows = read_table(table, ValueByLength)
    lengths = [64, 128, 256]
    expected = [(variant, 12, length) for variant in ("", "yarn") for length in lengths]
    assert [(row.variant, row.step, row.length) for row in rows] == expected
    assert all(0 < row.value < row.length / 2 + 1 and row.stderr < row.value for row in rows)
    assert "attention_distance at 64, yarn: " in capsys.readouterr().out
    before = table.read_bytes()
    assert main([*evaluate, also]) == 0 and table.read_bytes() == before
    assert main(report) == 0
    page = (run / "report" / "report.md").read_text()
    assert "## Attention distance against length" in page and "yarn" in page
    for flags, words in (
        (["--gin.AttentionDistance.text=3"], "AttentionDistance has no parameter text"),
        (["--gin.TRAIN_STEPS=5"], "evaluate does not use TRAIN_STEPS"),
        (["--sequences=3"], "--sequences applies only to synthetic tasks"),
        (["--gin.AttentionDistance.texts=3"], "AttentionDistance.texts is 3 and was 4"),
        (["--gin.AttentionDistance.texts=3", "--dry_run"], "texts is 3 and was 4"),
        (["--also=--gin.AttentionDistance.texts=3"], "computes other rows of attention_distance"),
        ([f"{also} --gin.AttentionDistance.texts=3"], "computes other rows of attention_distance"),
    ):
        assert main([*evaluate, *flags]) == 2
        assert words in capsys.readouterr().err


@dataclasses.dataclass(frozen=True)
class Squares(Measure):
    """The squares of numbers, computed until `broken`."""

    numbers: tuple[int, ...] = (2, 3)
    broken: int = 9

    name = "squares"
    Row: ClassVar[type[Keyed]] = ValueByLength
    unrecorded = ("numbers", "broken")

    def plan(self, run_model: RunModel, step: int) -> Sequence[Cell]:
        return [self.cell(run_model, step, number) for number in self.numbers]

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[Any]:
        (number,) = cell.key
        if number == self.broken:
            raise UserError("broken")
        COMPUTED.append(number)
        yield ValueByLength(*cell.columns, number, float(number**2), 0.0)


COMPUTED: list[int] = []


@dataclasses.dataclass(frozen=True)
class NoColumns(Squares):
    Row = cast(Any, Cell)


@dataclasses.dataclass(frozen=True)
class OtherColumns(Squares):
    """A CSV file would turn False into True."""

    Row = cast(
        Any, dataclasses.make_dataclass("Causal", [("causal", bool)], bases=(Keyed,), frozen=True)
    )


@dataclasses.dataclass(frozen=True)
class InAFolder(Squares):
    name = "sub/dir name é"


@dataclasses.dataclass(frozen=True)
class Masked(Squares):
    name = "masked_accuracy"


def setting(workdir: Path, measure: Measure) -> Setting:
    run_model = RunModel(epath.Path(workdir), "fire", "", cast(Any, None))
    return Setting("", cast(Experiment, None), run_model, measure)


def test_a_cell_is_computed_once_and_by_one_command(tmp_path):
    """Finished cells stay after an interruption and a new name; a claimed cell is left alone."""
    COMPUTED.clear()
    run = tmp_path / "run"
    with pytest.raises(UserError, match="broken"):
        compute_cells(setting(run, Squares((2, 9, 3))), 7)
    assert COMPUTED == [2]
    one = setting(run, Squares((2, 3, 4)))
    third = one.measure.plan(one.run_model, 7)[2]
    with claimed(run, third.claim):
        assert not compute_cells(one, 7)
    assert COMPUTED == [2, 3] and compute_cells(one, 7) and COMPUTED == [2, 3, 4]
    one = setting(run.rename(tmp_path / "renamed"), Squares((2, 3)))
    assert (
        compute_cells(one, 7) and COMPUTED == [2, 3, 4] and one.measure.steps(one.run_model) == {7}
    )
    assert compute_cells(one, 8) and COMPUTED == [2, 3, 4, 2, 3]
    rows = read_table(one.measure.file(one.run_model.workdir), ValueByLength)
    assert [(r.step, r.length, r.value) for r in rows[-2:]] == [(8, 2, 4.0), (8, 3, 9.0)]
    assert one.measure.row_text(rows[-1]) == "squares at 3: 9, 0"


@dataclasses.dataclass(frozen=True)
class Power(Keyed):
    last_of_key: ClassVar[str] = "exponent"
    length: int
    exponent: int
    value: float


@dataclasses.dataclass(frozen=True)
class Powers(Squares):
    """Two rows in a cell, of which the second cannot be computed if `broken` is its exponent."""

    Row = Power

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[Any]:
        (number,) = cell.key
        for exponent in (2, 9):
            if exponent == self.broken:
                raise UserError("broken")
            COMPUTED.append(exponent)
            yield self.row(cell, exponent, float(number**exponent))


def test_the_rows_of_a_cell_are_written_together(tmp_path):
    """Otherwise, a cell that was interrupted between two rows would count as finished."""
    COMPUTED.clear()
    one = setting(tmp_path / "run", Powers((2,)))
    with pytest.raises(UserError, match="broken"):
        compute_cells(one, 7)
    assert COMPUTED == [2] and one.measure.steps(one.run_model) == set()
    one = setting(tmp_path / "run", Powers((2,), broken=0))
    assert compute_cells(one, 7) and COMPUTED == [2, 2, 9]
    assert one.measure.steps(one.run_model) == {7}


@dataclasses.dataclass(frozen=True)
class Yielding(Squares):
    """A measure of one cell, whose `run` returns what `results` returns."""

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Any:
        return RESULTS[0](self, cell)


RESULTS: list[Callable[[Measure, Cell], Any]] = []


@pytest.mark.parametrize(
    "results, words",
    [
        (lambda m, c: iter(()), "Yielding.run yields no row for 2: it must yield at least one"),
        (lambda m, c: m.row(c, 1.0, 0.0), "run returns ValueByLength(run='run', "),
        (lambda m, c: None, "run returns None: it must yield rows, as `yield self.row(cell, ...)`"),
        (lambda m, c: [m.row(c, 1.0)], "row is given 1 value: it must be given value, stderr"),
        (lambda m, c: [m.row(c, 1.0, 0.0, 0.0)], "row is given 3 values: it must be given value"),
        (lambda m, c: [["run", 1.0]], "yields ['run', 1.0]: it must be a ValueByLength"),
        (lambda m, c: [m.row(c, np.float32(1), None)], "stderr is None: it must be a float"),
        (lambda m, c: [m.row(c, "1", 0.0)], "value is '1': it must be a float"),
        (lambda m, c: [m.row(c, True, 0.0)], "value is True: it must be a float"),
        (
            lambda m, c: [m.row(dataclasses.replace(c, key=(3,)), 1.0, 0.0)],
            "a row of ('run', 'fire', '', 7, 3): it must begin with the key of the cell, ('run', ",
        ),
        (
            lambda m, c: [m.row(c, 1.0, 0.0), m.row(c, 2.0, 0.0)],
            "yields two rows of ('run', 'fire', '', 7, 2): their keys must differ",
        ),
    ],
)
def test_what_a_cell_must_not_yield_is_refused_and_not_written(tmp_path, results, words):
    RESULTS[:] = [results]
    one = setting(tmp_path / "run", Yielding((2,)))
    with pytest.raises(UserError, match=re.escape(words)):
        compute_cells(one, 7)
    assert one.measure.steps(one.run_model) == set()


def test_scalars_of_numpy_are_numbers(tmp_path):
    RESULTS[:] = [lambda m, c: [m.row(c, np.float32(1.5), np.int64(2))]]
    one = setting(tmp_path / "run", Yielding((np.int64(2),)))  # type: ignore[arg-type]  # not an int
    assert compute_cells(one, 7)
    (row,) = read_table(one.measure.file(one.run_model.workdir), ValueByLength)
    assert (row.length, row.value, row.stderr) == (2, 1.5, 2.0)


@dataclasses.dataclass(frozen=True)
class Interrupted(Squares):
    resumes = True
    write_every = math.inf

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[ValueByLength]:
        yield from super().run(cell, params, mesh)
        raise KeyboardInterrupt


def test_an_interruption_counts_although_the_claim_is_lost_too(tmp_path):
    """A command that was paused and is then interrupted must not go on with its other work."""

    def lost() -> None:
        raise LeaseLost("now held by another process")

    one = setting(tmp_path / "run", Interrupted((2,)))
    (cell,) = one.measure.plan(one.run_model, 7)
    with pytest.raises(KeyboardInterrupt):
        compute(one.measure, cell, None, cast(Any, None), lost)


@pytest.mark.parametrize(
    "name, words",
    [
        ("Squares", "it must be MODULE.CLASS"),
        ("test_own_measure.Square", "has no dataclass Square. Did you mean Squares?"),
        ("test_own_measure.NoColumns", "has no `Row` that begins with run, encoding, variant"),
        ("test_own_measure.OtherColumns", "whose causal is none of str, int and float"),
        ("test_own_measure.InAFolder", "has the name 'sub/dir name é': it must consist of letters"),
        ("test_own_measure.Masked", "has the name of a measure of fire_lm, masked_accuracy"),
        ("sample_scoring.Sweep", "is not a subclass of fire_lm.measures.Measure"),
        ("no_such_module.Mine", "--measure: cannot import no_such_module"),
    ],
)
def test_what_is_no_measure_is_refused(name, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "test_own_measure", sys.modules[__name__])
    with pytest.raises(UserError, match=re.escape(words)):
        measure_class(name)


def test_a_measure_of_fire_lm_has_its_own_name():
    assert measure_class("fire_lm.measures.masked_accuracy.MaskedAccuracy") is MaskedAccuracy
