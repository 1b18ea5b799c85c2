"""The interface of a measure: what is computed from a checkpoint and stored as rows of a table.

A measure is a frozen value that gin configures. `fire_lm.sweeps` knows measures only through this
interface, and evaluates every measure in the same way:

    for each run, for the plain setting and each --also:
        measure.check(run_model)                      # before anything is computed
    for each checkpoint, for each of these settings:
        for cell in measure.plan(run_model, step):    # one piece of work
            skip the cell if measure.is_finished(cell), or if another process has claimed it
            for result in measure.run(cell, params, mesh):
                measure.write(cell, [result], ...)    # at the end, or at once if it resumes
            measure.finish(cell)

A cell is computed by one job at a time and is never computed twice. A measure that `resumes` inside
a cell yields only what the table lacks. With several processes, all of them run the cell, and
process 0 writes. To add a measure, write one file; docs/add_a_measure.md has an example.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from etils import epath
from jax.sharding import Mesh

from fire_lm.errors import UserError
from fire_lm.models import Decoder
from fire_lm.results import Keyed, merge_table, read_table
from fire_lm.results.tables import wrong_value
from fire_lm.sharding import MeshShape, with_shardings
from fire_lm.storage import make_folder

# A function that raises LeaseLost if another process has taken over the work.
StillOurs = Callable[[], None]


@dataclasses.dataclass(frozen=True)
class RunModel:
    """The model of a run under one setting: the plain one, or that of an --also.

    Attributes:
      workdir: The run directory.
      encoding: The name of the run's positional encoding in tables.
      variant: The name, in tables, of the changes to the model since training, or "".
      model: The model with these changes.
      train_length: The number of tokens in the longest rows on which the run was trained.
      trained_on: Returns the data on which the run was trained, with the changes of the setting.
    """

    workdir: epath.Path
    encoding: str
    variant: str
    model: Decoder
    train_length: int = 0
    trained_on: Callable[[], Any] = dataclasses.field(default=lambda: None, compare=False)

    @property
    def run(self) -> str:
        """The name of the run in tables."""
        return self.workdir.name

    @property
    def data(self) -> Any:
        """The data on which the run was trained, with the changes of the setting."""
        return self.trained_on()


@dataclasses.dataclass(frozen=True)
class Cell:
    """A piece of work on one checkpoint, which one job at a time claims.

    Attributes:
      run_model: The model.
      step: The step of the checkpoint.
      key: What distinguishes this cell from the others of its measure and checkpoint. By default,
        these are the values of the columns that follow `step` in the key of its rows.
      claim: The name of the claim, which is the same in all processes that could compute the cell.
      work: What else the measure needs to know about the cell.
    """

    run_model: RunModel
    step: int
    key: tuple[Any, ...]
    claim: str
    work: Any = None

    @property
    def workdir(self) -> epath.Path:
        return self.run_model.workdir

    @property
    def columns(self) -> tuple[str, str, str, int]:
        """The first columns of the cell's rows: run, encoding, variant and step."""
        of_run = self.run_model
        return of_run.run, of_run.encoding, of_run.variant, self.step


class Measure(abc.ABC):
    """Something to compute from checkpoints; see the docstring of this module.

    Subclasses are frozen dataclasses. They may have a field `mesh`, the shape of the device mesh,
    and a field `lengths`, which `fire-lm evaluate --lengths` replaces.

    Attributes:
      name: The name of the measure and of its table, measures/NAME.csv.
      table: The path of another table, relative to the run directory.
      Row: The schema of the table, whose key begins with run, encoding, variant and step.
      resumes: Whether `run` skips the results that the table has. Results are then written as they
        are computed. Otherwise, those of a cell are written together, so that a cell of which the
        table has rows is finished.
      write_every: The minimum number of seconds between two writes; each rewrites the table.
      unrecorded: The names of fields that may change from command to command, because the keys of
        the rows contain them or the values do not depend on them; see `recorded`.
    """

    name: ClassVar[str]
    table: ClassVar[str] = ""
    Row: ClassVar[type[Keyed]]
    resumes: ClassVar[bool] = False
    write_every: ClassVar[float] = 0.0
    unrecorded: ClassVar[tuple[str, ...]] = ()
    mesh: MeshShape = MeshShape()

    @abc.abstractmethod
    def plan(self, run_model: RunModel, step: int) -> Sequence[Cell]:
        """Return the cells of a checkpoint, whether or not they are finished; see `cell`."""

    @abc.abstractmethod
    def run(self, cell: Cell, params: Callable[[], Any], mesh: Mesh) -> Iterator[Any]:
        """Yield the results of a cell, by default rows, or those that the table lacks (`resumes`).

        Args:
          cell: The cell, which this job has claimed.
          params: Returns the parameters of the checkpoint, which are read at the first call.
          mesh: The device mesh.
        """

    def cell(self, run_model: RunModel, step: int, *key: Any) -> Cell:
        """Return the cell with this key."""
        digest = hashlib.sha256(repr(key).encode()).hexdigest()[:8]
        parts = (self.name, step, run_model.variant or "plain", digest)
        return Cell(run_model, step, key, "-".join(map(str, parts)))

    def row(self, cell: Cell, *values: Any) -> Any:
        """Return the row of a cell whose columns after those of the cell's key are `values`."""
        Row: Any = self.Row
        fields = dataclasses.fields(Row)[len(cell.columns) + len(cell.key) :]
        names = [field.name for field in fields]
        needed = sum(field.default is dataclasses.MISSING for field in fields)
        if not needed <= len(values) <= len(names):
            given = f"{len(values)} value{'s' * (len(values) != 1)}"
            raise UserError(
                f"{type(self).__name__}.row is given {given}: it must be given {', '.join(names)}",
                everywhere=True,
            )
        return Row(*cell.columns, *cell.key, *values)

    def file(self, workdir: epath.Path) -> epath.Path:
        """Return the path of a run's table."""
        return workdir / (self.table or f"measures/{self.name}.csv")

    def identity(self, run_model: RunModel) -> Any:
        """Return what, with the variant, determines the rows; equivalent settings have it equal."""
        return self, run_model.data

    def recorded(self) -> dict[str, str]:
        """Return the settings that all rows of a table share, by name.

        They are recorded beside the table, and rows with other settings are refused.
        """
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]  # measures are dataclasses
        names = [field.name for field in fields if field.name not in ("lengths", "mesh")]
        recorded = [name for name in names if name not in self.unrecorded]
        return {name: setting_text(getattr(self, name)) for name in recorded}

    def check(self, run_model: RunModel) -> None:  # noqa: B027 (optional)
        """Raise UserError for problems that would affect every checkpoint of the run.

        Without this check, other settings would be evaluated before the problem was found.
        """

    def clash(self, run_model: RunModel, other: Self) -> str:
        """Return why the rows of this setting could be confused with those of another, or "".

        Both settings have the same variant. The result completes a sentence about an --also.
        """
        both = [{cell.key for cell in one.plan(run_model, 0)} for one in (self, other)]
        if not both[0] & both[1]:
            return ""
        return (
            f"computes other rows of {self.name} under the same key: move "
            f"{self.file(run_model.workdir)} away, and run a separate command"
        )

    def layout(self, params: Any, mesh: Mesh) -> Any:
        """Return the shapes of parameters with the shardings with which they are read."""
        return with_shardings(params, mesh)

    def rows_of(self, cell: Cell) -> list[Any]:
        """Return the rows of a cell in the run's table, whatever the run was called then."""
        rows = read_table(self.file(cell.workdir), self.Row)
        of_cell = (*cell.columns[1:], *cell.key)
        return [row for row in rows if row.key[1 : 1 + len(of_cell)] == of_cell]

    def is_finished(self, cell: Cell) -> bool:
        """Return whether nothing is left to do for a cell; only process 0 calls this method."""
        return not self.resumes and bool(self.rows_of(cell))

    def check_rows(self, cell: Cell, rows: Sequence[Any]) -> None:
        """Raise UserError for what is no row of a cell, or a row that the table could not keep."""
        yields, of_cell = f"{type(self).__name__}.run yields", (*cell.columns, *cell.key)
        keys = set()
        for row in rows:
            if not isinstance(row, self.Row):
                raise UserError(f"{yields} {row!r}: it must be a {self.Row.__name__}")
            if problem := wrong_value(row):
                raise UserError(f"{yields} a row whose {problem}")
            if row.key[: len(of_cell)] != of_cell:
                raise UserError(
                    f"{yields} a row of {row.key}: it must begin with the key of the cell, "
                    f"{of_cell}"
                )
            if row.key in keys:
                raise UserError(
                    f"{yields} two rows of {row.key}: their keys must differ; "
                    f"{self.Row.__name__}.last_of_key names the last column of the key"
                )
            keys.add(row.key)

    def write(self, cell: Cell, results: Sequence[Any], still_ours: StillOurs) -> None:
        """Write results to the run directory; only process 0 calls this method.

        Until it returns, no other process writes results of the run, unless this one was paused.

        Args:
          cell: The cell.
          results: What `run` has yielded since the last write.
          still_ours: A function to call between a read on which a write depends and the write.

        Raises:
          UserError: See `check_rows`.
        """
        self.check_rows(cell, results)
        file = self.file(cell.workdir)
        make_folder(file.parent)
        merge_table(file, self.Row, results)

    def finish(self, cell: Cell) -> None:  # noqa: B027 (optional)
        """Write what depends on all results of a cell; only process 0 calls this method."""

    def steps(self, run_model: RunModel) -> set[int]:
        """Return the steps of the run for which the table has rows."""
        rows = read_table(self.file(run_model.workdir), self.Row)
        return {int(row.key[3]) for row in rows if row.key[1] == run_model.encoding}

    def count_missing(self, cell: Cell) -> tuple[int, int]:
        """Return how many results of a cell are missing, and how many it has in all."""
        return int(not self.is_finished(cell)), 1

    def plan_text(self, run_model: RunModel, step: int, also: str) -> str:
        """Return the plan for a checkpoint, for --dry_run."""
        cells = self.plan(run_model, step)
        counts = [self.count_missing(cell) for cell in cells]
        missing, total = (sum(count[i] for count in counts) for i in (0, 1))
        names = [field.name for field in dataclasses.fields(self.Row)][4:]
        values = [dict.fromkeys(map(str, x)) for x in zip(*(c.key for c in cells), strict=True)]
        key = [f"{name} {', '.join(x)}" for name, x in zip(names, values, strict=False) if any(x)]
        keys = f" ({'; '.join(key)})" if key else ""
        place = f"{run_model.workdir}@{step}{f' also {also}' * bool(also)}"
        return f"{place}: {self.name}; {missing} of {total} results to compute{keys}"

    def row_text(self, row: Any) -> str:
        """Return a printable line for a row."""
        columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
        key = list(columns)[4 : len(row.key)]
        numbers = (v for name, v in columns.items() if name not in key and isinstance(v, float))
        where = [str(columns[name]) for name in (*key, "variant") if columns[name] != ""]
        return f"{self.name} at {', '.join(where)}: {', '.join(f'{v:.4g}' for v in numbers)}"


def setting_text(value: Any) -> str:
    """Return the value of a setting as text that is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def check_least(measure: str, least: int, **values: int | None) -> None:
    """Raise UserError for a setting of a measure that is less than `least`; None is allowed.

    `measure` is the name of the measure in gin.
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise UserError(f"{measure}.{name} is {value}: it must be {least} or more")
