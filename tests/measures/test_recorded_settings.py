"""The settings beside the table of a measure: rows of other settings are never shown or added."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from etils import epath
from jax.sharding import Mesh

from fire_lm.errors import RunFailed, UserError
from fire_lm.measures import Cell, Measure, RunModel, ValueByLength
from fire_lm.measures.masked_accuracy import MaskedAccuracy
from fire_lm.measures.recorded_settings import check_settings
from fire_lm.sweeps.command import compute_cells
from fire_lm.sweeps.settings import Setting


@dataclasses.dataclass(frozen=True)
class Multiples(Measure):
    """The multiples of lengths."""

    lengths: tuple[int, ...] = (2, 3)
    factor: int = 1
    of: Callable[..., Any] = sum
    batch: int = 8

    name = "multiples"
    Row = ValueByLength
    unrecorded: ClassVar[tuple[str, ...]] = ("batch",)
    meanwhile: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)

    def plan(self, run_model: RunModel, step: int) -> Sequence[Cell]:
        return [self.cell(run_model, step, length) for length in self.lengths]

    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[ValueByLength]:
        type(self).meanwhile()
        yield self.row(cell, float(self.factor * cell.key[0]), 0.0)


@dataclasses.dataclass(frozen=True)
class Extended(Multiples):
    """The class after a field with a default was added to it, and one was removed."""

    offset: int = 0
    unrecorded = ("batch", "of")


def compute(run: Path, measure: Measure) -> None:
    run_model = RunModel(epath.Path(run), "fire", "", cast(Any, None))
    compute_cells(Setting("", cast(Any, None), run_model, measure), 7)


def check(run: Path, measure: Measure) -> None:
    check_settings(measure, epath.Path(run))


def values(run: Path) -> list[str]:
    return [line.split(",")[5] for line in table(run).read_text().splitlines()[1:]]


def table(run: Path) -> Path:
    return run / "measures" / "multiples.csv"


def record(run: Path) -> Path:
    return run / "measures" / "multiples.settings.json"


def test_other_settings_are_refused_until_the_table_is_moved(tmp_path):
    """Lengths and what the class leaves out may differ; a moved table leaves no trace."""
    compute(tmp_path, Multiples())
    assert json.loads(record(tmp_path).read_text())["factor"] == "1"
    compute(tmp_path, Multiples(lengths=(2, 4), batch=16))
    check(tmp_path, Multiples(lengths=(5,)))
    with pytest.raises(UserError) as refused:
        check(tmp_path, Multiples(lengths=(5,), factor=3))
    first, second = str(refused.value).splitlines()
    assert first == (
        f"the rows of {table(tmp_path)} have other settings: Multiples.factor is 3 and was 1"
    )
    assert second == f"set the old values, or move this file and {record(tmp_path).name} away"
    table(tmp_path).rename(tmp_path / "old.csv")
    check(tmp_path, Multiples(factor=3))
    compute(tmp_path, Multiples(factor=3))
    assert values(tmp_path) == ["6.0", "9.0"]
    with pytest.raises(UserError, match=r"Multiples\.factor is 1 and was 3"):
        check(tmp_path, Multiples())


def test_a_command_that_started_before_the_table_adds_nothing_to_it(tmp_path, monkeypatch):
    late, waiting = Multiples(lengths=(4,), factor=3), [Multiples()]
    check(tmp_path, late)

    def meanwhile() -> None:
        if waiting:
            compute(tmp_path, waiting.pop())

    monkeypatch.setattr(Multiples, "meanwhile", staticmethod(meanwhile))
    with pytest.raises(UserError, match=r"Multiples\.factor is 3 and was 1"):
        compute(tmp_path, late)
    assert values(tmp_path) == ["2.0", "3.0"]
    check(tmp_path, Multiples())


def test_a_table_without_a_record_is_used_and_told(tmp_path, capsys):
    """Earlier versions recorded nothing. From its next row on, the settings are known."""
    compute(tmp_path, Multiples())
    record(tmp_path).unlink()
    check(tmp_path, Multiples(factor=3))
    told = capsys.readouterr().out
    assert f"{table(tmp_path)} has no record of its settings" in told and "factor = 3" in told
    compute(tmp_path, Multiples(lengths=(4,)))
    assert values(tmp_path) == ["2.0", "3.0", "4.0"]
    with pytest.raises(UserError, match=r"Multiples\.factor is 3 and was 1"):
        check(tmp_path, Multiples(factor=3))


def test_a_new_field_had_its_default(tmp_path):
    compute(tmp_path, Multiples())
    check(tmp_path, Extended())
    with pytest.raises(UserError, match=r"Extended\.offset is 1 and was 0"):
        check(tmp_path, Extended(offset=1))


def test_a_damaged_record_is_told(tmp_path):
    compute(tmp_path, Multiples())
    record(tmp_path).write_text("[")
    with pytest.raises(RunFailed, match=r"multiples\.settings\.json is damaged .*: move or delete"):
        check(tmp_path, Multiples())


def test_functions_are_recorded_without_their_addresses(tmp_path):
    """Other processes have other addresses."""
    functions = [lambda: 1, lambda: 2]
    texts = {Multiples(of=function).recorded()["of"] for function in functions}
    assert len(texts) == 1 and " at 0x" not in texts.pop()


def test_rows_of_masked_accuracy_tell_all_its_settings():
    assert MaskedAccuracy(seed=3, tokens=7, split="train").recorded() == {}
