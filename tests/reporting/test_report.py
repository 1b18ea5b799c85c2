"""fire_lm.reporting.report: a page made from rows only, and what it says about them."""

import dataclasses
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest
from etils import epath
from gin_files import CONFIGS
from sample_results import LENGTHS, LOSSES, facts, loss_row, sample_results, text_of, with_losses

from fire_lm.errors import RunFailed, UserError
from fire_lm.reporting import encoding_figures
from fire_lm.reporting.charts import Image
from fire_lm.reporting.loss_curves import position_lines, training_lines
from fire_lm.reporting.losses import loss_lines
from fire_lm.reporting.page import Picture, Section, Table, as_markdown
from fire_lm.reporting.report import kinds_of_layer, report_sections, write_page, write_report
from fire_lm.reporting.series import Series
from fire_lm.results.folder import Results, Setting, read_results
from fire_lm.results.tables import KindOfLayer

FILES = {
    "index.html", "report.md", "runs.csv", "settings.csv", "length_sweep.csv",
    "position_losses.csv", "training.csv", "learned_numbers.csv", "biases.csv",
    "attention_scores.csv",
}  # fmt: skip


PICTURES = {
    "losses_embedded_validation_concat",
    "positions_embedded_validation_concat_length_256_4_096_tokens_text_not_recorded",
    "learned_fire", "biases_fire", "attention_alibi", "training",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report(epath.Path(folder), "A report", sample_results())
    return folder


def test_pictures_of_equal_names_are_files_of_their_own(tmp_path):
    """The arms "fire, alpha 1.0" and "fire, alpha -1.0" have a picture of one name each."""
    images = [Image(f"<svg>{number}</svg>", b"") for number in range(3)]
    given = [f"learned_fire_alpha_1_0{number}" for number in ("", "", "_2")]
    pictures = [Picture(*pair) for pair in zip(given, [""] * 3, [""] * 3, images, strict=True)]
    write_page(epath.Path(tmp_path), "A page", [Section("A", [], [part]) for part in pictures])
    names = re.findall(r"\((\w+)\.svg\)", (tmp_path / "report.md").read_text())
    assert names == [f"learned_fire_alpha_1_0{number}" for number in ("", "_2", "_2_2")]
    assert [(tmp_path / f"{name}.svg").read_text() for name in names] == [i.svg for i in images]


class Page(HTMLParser):
    """A parsed page: its pictures, table cells and links, and whatever it would fetch or run."""

    def __init__(self, text: str):
        super().__init__()
        self.images: list[dict[str, str]] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.foreign: list[tuple[str, str]] = []
        self.cells: list[str] = []
        self._cell = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id", ""))
        if tag == "img":
            self.images.append(found)
        if tag == "a":
            self.links.append(found["href"])
        address = found.get("src", "") + (found.get("href", "") if tag == "link" else "")
        if tag in ("script", "iframe", "object") or "//" in address.split(",")[0]:
            self.foreign.append((tag, address[:60]))
        self._cell = tag in ("td", "th")

    def handle_data(self, data):
        if self._cell and data.strip():
            self.cells.append(data)


def test_a_report_is_one_page_and_its_parts_as_files(folder):
    names = {path.name for path in folder.iterdir()}
    assert names == FILES | {f"{name}.{kind}" for name in PICTURES for kind in ("svg", "png")}


def test_the_page_needs_nothing_else_and_describes_its_pictures(folder):
    page = Page((folder / "index.html").read_text())
    assert len(page.images) == len(PICTURES)
    for image in page.images:
        assert image["src"].startswith("data:image/svg+xml;base64,")
        assert len(image["alt"]) > 40
    assert page.foreign == []
    assert page.links and {link.removeprefix("#") for link in page.links} <= page.anchors
    assert Page('<script src="https://x.y/z.js"></script>').foreign, "the check sees one"


def test_the_page_begins_with_what_the_runs_tell(folder):
    """A chain is established, but not at the length at which fire and alibi are close."""
    first = (folder / "report.md").read_text().split("\n## ")[1]
    assert first.startswith("What these runs tell\n\nAn arm is all runs that differ only in")
    (last,) = (line for line in first.splitlines() if line.startswith("| at 256 tokens"))
    assert re.fullmatch(r"\| at 256 tokens \| fire \| alibi\*? \(\d+\) \| rope \|", last)


def test_the_page_says_what_was_run_and_where(folder):
    cells = Page((folder / "index.html").read_text()).cells
    for fact in ("372,576", "3 layers x 96", "embedded, concat", "2 x x86_64 CPU core, jax 0.10.2"):
        assert fact in cells
    assert "1.810 ± 0.014" in cells, "mean of 1.80 and 1.82, with their standard deviation"


def test_pictures_take_the_ink_of_the_page_and_fetch_nothing(folder):
    for name in PICTURES:
        svg = (folder / f"{name}.svg").read_text()
        assert "currentColor" in svg and "prefers-color-scheme:dark" in svg
        assert "#010203" not in svg and "@import" not in svg
        assert set(re.findall(r'(?:href|src)="([^"#]+)', svg)) == set()
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.ci
def test_the_same_rows_give_the_same_bytes_and_can_be_read_back(folder, tmp_path):
    again = read_results(epath.Path(folder))
    for kind in dataclasses.fields(Results):
        assert list(getattr(again, kind.name)) == list(getattr(sample_results(), kind.name))
    write_report(epath.Path(tmp_path), "A report", again)
    for path in sorted(folder.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.ci
def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
    write_report(epath.Path(tmp_path), "A report", sample_results())
    runs = Results(runs=sample_results().runs[:1])
    write_report(epath.Path(tmp_path), "A report", runs)
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "report.md", "runs.csv"}
    text = (tmp_path / "report.md").read_text()
    assert "No length has been scored yet" in text and "No step has been logged" in text


def test_a_run_that_goes_on_is_told(text):
    going = dataclasses.replace(facts("fire", 0), step=400)
    assert "fire-seed0 (400 of 1,000)" in _text(Results(runs=[going]))
    assert "Unfinished when" not in text


def _text(results: Results, other=None) -> str:
    return as_markdown("", report_sections(results, other))


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.md").read_text()


def names_of(lines: Sequence[Series]) -> set[str]:
    return {line.name for line in lines}


def test_other_vocabularies_are_compared_in_bits_alone(text):
    results = sample_results()
    assert "Nats per token (log perplexity)" in text and "in bits per byte only" not in text
    rows = [
        loss_row(run, length, nll, tokens=2048 if run.encoding == "rope" else 4096)
        for run in results.runs
        for length, nll in zip(LENGTHS, LOSSES[run.encoding], strict=True)
    ]
    mixed = _text(Results(runs=results.runs, losses=rows))
    assert "in bits per byte only" in mixed and "Comparison with the paper" not in mixed
    assert "Bits per byte, mean" in mixed and "Nats per token (log" not in mixed
    (lines,) = loss_lines(with_losses(results, rows), nats=False).values()
    last = [line.points[256].mean for line in lines]
    assert last == sorted(last) and lines[0].name == "rope", "half the tokens, half the bits"


def test_seeds_without_a_common_bin_and_scalars_that_end_early_are_drawn_all_the_same():
    results = sample_results()
    positions = [
        dataclasses.replace(row, last=row.last + 1) if row.run == "fire-seed1" else row
        for row in results.positions
    ]
    learned = [n for n in results.learned if (n.name, n.step) != ("c", 1000)]
    (lines,) = position_lines(dataclasses.replace(results, positions=positions)).values()
    assert {line.name for line in lines} == {"rope", "alibi"}
    (picture,) = encoding_figures.learned(dataclasses.replace(results, learned=learned))
    assert "c 16.01 to 17.01" in picture.caption


def test_a_report_draws_a_limited_number_of_arms_and_says_so(monkeypatch):
    results = sample_results()
    runs = {run.run: run for run in results.runs}

    def again(rows, run):
        return [*rows, *(dataclasses.replace(row, run=f"{run}-again") for row in rows)]

    more = dataclasses.replace(
        results,
        runs=[
            *results.runs,
            *(
                dataclasses.replace(runs[run], run=f"{run}-again", arm=f"{runs[run].arm}, again")
                for run in ("fire-seed0", "alibi-seed0")
            ),
        ],
        learned=again(results.learned, "fire-seed0"),
        biases=again(results.biases, "fire-seed0"),
        scores=again(results.scores, "alibi-seed0"),
    )
    page = " ".join((CONFIGS.parent / "docs" / "results.md").read_text().split())
    assert f"draws at most {encoding_figures.MOST_DRAWN} kinds of run" in page
    pictures = encoding_figures.learned(more)
    assert len(pictures) == 2 and encoding_figures.limit(more, pictures) == []
    monkeypatch.setattr(encoding_figures, "MOST_DRAWN", 1)
    text = _text(more)
    assert text.count("drawn for at most 1 kinds of run") == 2, "in both sections"
    drawn = re.findall(r"\((learned|biases|attention)(\w+)\.svg\)", text)
    assert drawn == [("learned", "_fire"), ("biases", "_fire"), ("attention", "_alibi")]


def test_nats_of_other_vocabularies_are_never_in_one_figure():
    results = sample_results()
    positions = [
        dataclasses.replace(row, tokens=row.tokens // 2) if row.encoding == "rope" else row
        for row in results.positions
    ]
    found = position_lines(dataclasses.replace(results, positions=positions))
    assert [names_of(lines) for lines in found.values()] == [{"fire", "alibi"}, {"rope"}]
    settings = [
        Setting(run.run, "TextData.vocabulary", "'t5'" if run.encoding == "rope" else "'bytes'")
        for run in results.runs
    ]
    apart = training_lines(dataclasses.replace(results, settings=settings))
    assert [names_of(lines) for lines in apart] == [{"alibi", "fire"}, {"rope"}]


def test_against_another_report():
    results = sample_results()
    better = with_losses(results, [dataclasses.replace(r, nll=r.nll - 0.5) for r in results.losses])
    alone = Results(runs=results.runs, losses=results.losses)
    told = _text(alone, ("before", better))
    assert "Comparison with before" in told and "Comparison with the paper" not in told
    assert told.count("+0.500") == 9
    elsewhere = with_losses(
        results, [dataclasses.replace(r, dataset="arxiv") for r in results.losses]
    )
    assert "no losses of the same kinds of run" in _text(alone, ("there", elsewhere))
    other_tokens = with_losses(
        results, [dataclasses.replace(r, tokens=1024, nll=4 * r.nll) for r in results.losses]
    )
    told = _text(alone, ("there", other_tokens))
    assert "differ in their vocabularies" in told and told.count("+0.000") == 9, (
        "in bits they are equal"
    )


@pytest.mark.ci
def test_texts_of_one_name_are_apart_in_a_report(tmp_path):
    """Losses and losses by position of two texts are kept apart.

    They are never averaged over seeds, given in nats, or compared with another run.
    """
    results = sample_results()
    first = [row for row in results.losses if row.run.endswith("0")]
    second = [row for row in results.losses if row.run.endswith("1")]
    mixed = dataclasses.replace(results, scored=text_of(first) + text_of(second, text="b" * 16))
    text = _text(mixed)
    assert "the runs differ in texts or vocabularies (text aaaaaaaa, text bbbbbbbb)" in text
    assert "| fire (text bbbbbbbb) |" in text and "Nats per token (log" not in text
    (lines,) = loss_lines(mixed).values()
    assert len(lines) == 6 and all(p.runs == 1 for line in lines for p in line.points.values())
    whole = dataclasses.replace(results, scored=text_of(results.losses))
    assert "the same text at every length (text aaaaaaaa)" in _text(whole)
    assert "Nats per token above fire: ± half the 95 % interval over seeds and text" in _text(whole)
    rows = [dataclasses.replace(row, nll=row.nll + 0.01) for row in results.losses]
    other = dataclasses.replace(results, losses=rows, scored=text_of(rows, text="b" * 16))
    told = _text(whole, ("there", other))
    assert "The runs differ in their texts or vocabularies: losses are in bits per byte" in told
    told = _text(whole, ("there", whole))
    assert told.count("not distinguishable (+0.000 ± 0.000)") == 9
    write_report(epath.Path(tmp_path), "A report", whole)
    assert list(read_results(epath.Path(tmp_path)).scored) == whole.scored


def test_positions_of_other_texts_are_in_another_figure():
    """The text of a position loss is that of the sweep row from the same forward pass."""
    results = sample_results()
    rows = [
        dataclasses.replace(row, nll=2.0 + (row.encoding == "rope"), tokens=4096)
        for row in results.losses
    ]
    bins = [
        dataclasses.replace(one, nll=2.0 + (one.encoding == "rope")) for one in results.positions
    ]
    texts = [
        line
        for row in rows
        for line in text_of([row], text=("b" if row.encoding == "rope" else "a") * 16)
    ]
    found = dataclasses.replace(results, losses=rows, positions=bins, scored=texts)
    names = {name[-13:]: names_of(lines) for name, lines in position_lines(found).items()}
    assert names == {"text aaaaaaaa": {"fire", "alibi"}, "text bbbbbbbb": {"rope"}}
    moved = [dataclasses.replace(one, nll=1.9) for one in bins]
    for unknown in ({"positions": moved}, {"scored": []}):
        (name,) = position_lines(dataclasses.replace(found, **unknown))
        assert name.endswith("4,096 tokens, text not recorded"), "rows with other losses, or none"


@pytest.mark.ci
def test_a_folder_of_other_things_is_left_alone(tmp_path):
    folder = epath.Path(tmp_path)
    (folder / "length_sweep.csv").write_text("a run's own")
    with pytest.raises(UserError, match="contains other files, which a report might overwrite"):
        write_report(folder, "A report", sample_results())
    assert [path.name for path in folder.iterdir()] == ["length_sweep.csv"]
    report = folder / "report"
    write_report(report, "A report", sample_results())
    (report / "mine.png").write_bytes(b"mine")
    write_report(report, "A report", Results(runs=sample_results().runs))
    assert (report / "mine.png").exists() and not (report / "training.svg").exists()


def test_training_is_the_mean_over_the_same_runs_everywhere():
    """Seeds have different token counts per step, and one of them has not reached the end."""
    points = [
        dataclasses.replace(point, tokens=point.tokens + 7 * point.run.endswith("1"))
        for point in sample_results().training
        if not (point.run == "fire-seed1" and point.step == 1000)
    ]
    (lines,) = training_lines(dataclasses.replace(sample_results(), training=points))
    points = {line.name: line.points for line in lines}
    assert list(points["fire"]) == [1027.5, 512_003.5]
    assert [point.runs for point in points["rope"].values()] == [2, 2, 2]


def test_a_damaged_file_and_no_results_are_told(folder, tmp_path):
    with pytest.raises(UserError, match=r"no runs\.csv"):
        read_results(epath.Path(tmp_path))
    (tmp_path / "runs.csv").write_bytes((folder / "runs.csv").read_bytes())
    (tmp_path / "biases.csv").write_text("run,bias\nfire,0\n")
    with pytest.raises(RunFailed, match="biases.csv does not have the columns"):
        read_results(epath.Path(tmp_path))


def test_results_of_earlier_versions_lack_the_last_column(folder, tmp_path):
    lines = (folder / "runs.csv").read_text().splitlines()
    (tmp_path / "runs.csv").write_text("".join(f"{row.rpartition(',')[0]}\n" for row in lines))
    assert lines[0].endswith(",seconds,lengths")
    assert read_results(epath.Path(tmp_path)).runs == read_results(epath.Path(folder)).runs
    shorter = "".join(f"{row.rsplit(',', 2)[0]}\n" for row in lines)
    (tmp_path / "runs.csv").write_text(shorter)
    with pytest.raises(RunFailed, match="runs.csv does not have the columns"):
        read_results(epath.Path(tmp_path))


def test_what_may_be_wider_than_the_page_scrolls_and_says_so(folder):
    """Wide tables and pictures of several panels scroll; words in cells wrap, numbers do not."""
    page = (folder / "index.html").read_text()
    tables, panels = page.count("<table>"), len(re.findall(r'class="scrolls panels"', page))
    assert tables >= 4 and panels >= 2
    for wide in (page.count('class="wide"'), page.count('class="cue"')):
        assert wide == tables + panels
    cells = Table("", ["", "a", "b"], [["x", "1.510 ± 0.014 (2)", "of several words"]]).html()
    assert "<td>1.510" in cells and '<td class="words">of several' in cells


def test_captions_name_ranges_bars_bands_and_dotted_lines(text):
    """The caption stands below each picture."""
    captions = dict(re.findall(r"\]\((\w+)\.svg\)\n\n([^\n]+)", text))
    losses = captions["losses_embedded_validation_concat"]
    assert "64 to 256 tokens; bars: standard deviation over 2 seeds; dotted: the training" in losses
    (positions,) = (told for name, told in captions.items() if name.startswith("positions"))
    assert "bands: standard deviation over seeds; dotted: the training length, 64." in positions
    biases = captions["biases_fire"]
    assert "dotted: the training length, 64. Each panel has its own scale; all values lie" in biases
    assert "bands: from their minimum" in captions["attention_alibi"]
    assert "up to 1,024,000 tokens; losses above" in captions["training"]


def test_text_of_runs_cannot_become_markup():
    table = Table("a <b> caption", ["", "<i>"], [["a|b", "<script>"]])
    assert "<script>" not in table.html() and "&lt;script&gt;" in table.html()
    assert "a\\|b" in table.markdown()


def test_a_report_lists_the_kinds_of_layer_once_for_each_arm():
    rows = [
        ["0-2", "RoPE", "window 16", "46 tokens", "111,840"],
        ["3", "NoPE", "log_n", "all tokens", "111,840"],
    ]
    layers = [KindOfLayer(f"swan-seed{seed}", "swan", *row) for seed in (0, 1) for row in rows]
    runs = [facts(encoding, seed) for encoding in ("swan", "rope") for seed in (0, 1)]
    (section,) = kinds_of_layer(Results(runs=runs, layers=layers))
    (table,) = section.parts
    assert isinstance(table, Table) and table.rows == [["swan", *row] for row in rows]
    assert kinds_of_layer(Results(runs=runs)) == []
