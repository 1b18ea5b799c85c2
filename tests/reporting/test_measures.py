"""Any measure by length in a report: which tables are read, and what is shown of them."""

import dataclasses

import pytest
from etils import epath
from gin_files import CONFIGS
from sample_results import facts

from fire_lm.experiment import load_experiment
from fire_lm.reporting.gather import gather
from fire_lm.reporting.measures import sections
from fire_lm.reporting.page import Picture, Table
from fire_lm.results.folder import Results, read_results, write_results
from fire_lm.results.measured_values import MeasuredValue, read_measures

HEAD = "run,encoding,variant,step,length,value,stderr\n"


def make_run(folder: epath.Path, encoding: str, seed: int, **tables: str) -> epath.Path:
    """Write a run directory with tables of measures by name."""
    (folder / "measures").mkdir(parents=True)
    files = [f"{CONFIGS}/runs/quickstart.gin", f"{CONFIGS}/positions/{encoding}.gin"]
    (folder / "config.gin").write_text(load_experiment(files, [f"SEED={seed}"]).text())
    for name, text in tables.items():
        (folder / "measures" / f"{name}.csv").write_text(text)
    return folder


def values(run: str, encoding: str, of_lengths: dict[int, float], variant: str = "") -> str:
    rows = (f"{run},{encoding},{variant},10,{n},{x},0.5\n" for n, x in of_lengths.items())
    return "".join(rows)


@pytest.mark.ci
def test_a_measure_of_ones_own_is_a_table_and_a_figure(tmp_path):
    top = epath.Path(tmp_path)
    for seed in (0, 1):
        near = values("x", "fire", {64: 20.0 + seed, 256: 90.0 + seed})
        far = values("x", "alibi", {64: 9.0 + 0.1 * seed, 256: 12.0 + 0.1 * seed})
        make_run(top / f"fire-{seed}", "fire", seed, attention_distance=HEAD + near)
        make_run(top / f"alibi-{seed}", "alibi", seed, attention_distance=HEAD + far)
    results = gather([str(top)], with_probes=False)
    assert {row.run for row in results.measures} == {p.name for p in top.iterdir()}
    (section,) = sections(results)
    assert section.title == "Attention distance against length"
    table, differences, picture = section.parts
    assert isinstance(table, Table) and isinstance(differences, Table)
    assert table.header == ["", "64 (x1)", "256 (x4)"] and not table.best, "better is unknown"
    assert table.rows[0] == ["fire", "20.50 ± 0.71", "90.50 ± 0.71"]
    assert table.caption == "Attention distance, mean ± standard deviation over 2 seeds."
    assert differences.rows[0][:1] == ["alibi"] and differences.rows[0][1].startswith("-11.45 ± ")
    assert section.paragraphs[0].startswith("Highest first; arms with")
    assert "fire (a), alibi (b)" in section.paragraphs[0]
    assert isinstance(picture, Picture) and "fire 90.50, alibi 12.05" in picture.alt
    assert "dotted: the training length, 64" in picture.caption


def row(part: str, variant: str, value: float, step: int = 10) -> MeasuredValue:
    return MeasuredValue("m", "fire-seed0", "fire", variant, step, part, 64, value, float("nan"))


def test_parts_are_panels_and_variants_and_steps_are_lines():
    rows = [row("layer 0", "", 1.0), row("layer 0", "pi", 2.0), row("layer 1", "", 3.0)]
    rows += [row("layer 1", "", 0.001, step=20), row("layer 1", "", float("nan"), step=30)]
    results = Results(runs=[facts("fire", 0)], measures=rows)
    (section,) = sections(results)
    tables = [part for part in section.parts if isinstance(part, Table)]
    assert [[line[0] for line in table.rows] for table in tables] == [
        ["fire (pi)", "fire"], ["fire, step 10", "fire, step 20"],
    ]  # fmt: skip
    assert tables[1].caption.startswith("M, layer 1, mean ± standard error over what was measured")
    assert tables[0].rows[0][1] == "2.000", "of a single run without an error there is no ±"
    assert isinstance(section.parts[-1], Picture) and section.parts[-1].panels == 2


def test_values_that_are_not_finite_are_left_out_and_the_page_says_so():
    rows = [row("", "", float("inf")), row("", "", float("nan"), step=20)]
    (section,) = sections(Results(runs=[facts("fire", 0)], measures=rows))
    told = "Left out of all means, because they are not finite: 2 values of fire-seed0."
    assert section.paragraphs == [told] and not section.parts
    (section,) = sections(Results(runs=[facts("fire", 0)], measures=[*rows, row("", "", 1.0)]))
    assert section.paragraphs[0] == told and section.parts


def test_each_part_has_digits_of_its_own():
    rows = [row("loss", "", 1.2345), row("accuracy", "", 45.678), row("rank", "", 1234.0)]
    (section,) = sections(Results(runs=[facts("fire", 0)], measures=rows))
    tables = [part for part in section.parts if isinstance(part, Table)]
    assert [table.rows[0][1] for table in tables] == ["1.234", "45.68", "1234"]
    assert tables[0].caption.startswith("M, loss, mean ±")
    assert "loss: fire 1.234; accuracy: fire 45.68; rank: fire 1234" in section.parts[-1].alt


def test_a_table_of_other_columns_and_rows_of_other_runs_are_left_out(tmp_path):
    run = make_run(
        epath.Path(tmp_path) / "run", "fire", 0,
        by_head="run,encoding,variant,step,head,length,value\nold,fire,,5,3,64,1.5\n",
        other="run,encoding,variant,step,score\nold,fire,,5,1.5\n",
        mixed=HEAD + values("old", "rope", {64: 1.0}),
    )  # fmt: skip
    (found,), left_out = read_measures(run, "fire")
    assert (found.run, found.measure, found.part, found.value) == ("run", "by_head", "head 3", 1.5)
    assert not left_out


@pytest.mark.parametrize(
    "bad, why",
    [
        ((HEAD + "old,fire,,5,x,1.0,\n").encode(), "a line without numbers: {"),
        ((HEAD + "old,fire,,5\n").encode(), "a line without numbers: {"),
        (b"run,encod\xff\n", "can't decode byte 0xff"),
    ],
)
def test_a_table_that_is_damaged_is_left_out_and_told(tmp_path, bad, why, capsys):
    run = make_run(epath.Path(tmp_path) / "run", "fire", 0, m=HEAD + values("r", "fire", {64: 2.0}))
    (run / "measures" / "bad.csv").write_bytes(bad)
    results = gather([str(run)], with_probes=False)
    assert [(row.measure, row.value) for row in results.measures] == [("m", 2.0)]
    gather([str(run)], with_probes=False)
    told = capsys.readouterr().err
    assert told.count(f"{run / 'measures' / 'bad.csv'} is left out, because it is damaged") == 1
    assert why in told


def test_rows_under_an_earlier_name_and_an_incomplete_line_are_no_values(tmp_path):
    both = values("old", "fire", {64: 9.0, 128: 3.0}) + values("run", "fire", {64: 2.0})
    written = HEAD + both + values("old", "fire", {64: 8.0}) + "run,fire,,10,256,1"
    run = make_run(epath.Path(tmp_path) / "run", "fire", 0, m=written)
    assert {row.length: row.value for row in read_measures(run, "fire")[0]} == {64: 2.0, 128: 3.0}


def test_a_report_keeps_the_values(tmp_path):
    measured = [dataclasses.replace(row("", "", 1.0), stderr=0.25)]
    write_results(epath.Path(tmp_path), Results(runs=[facts("fire", 0)], measures=measured))
    assert list(read_results(epath.Path(tmp_path)).measures) == measured
