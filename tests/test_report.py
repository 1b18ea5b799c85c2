"""fire_lm.reporting.report: a page of rows alone, and what it says of them."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest
from etils import epath
from sample_results import LENGTHS, LOSSES, facts, loss_row, sample_results, with_losses

from fire_lm.errors import RunFailed, UserError
from fire_lm.reporting.comparison import beside_the_paper
from fire_lm.reporting.page import Table, as_markdown
from fire_lm.reporting.report import report_sections, write_report
from fire_lm.reporting.results import Results, read_results
from fire_lm.reporting.seeds import loss_lines

FILES = {
    "index.html", "report.md", "runs.csv", "settings.csv", "length_sweep.csv",
    "position_losses.csv", "training.csv", "learned_numbers.csv", "biases.csv",
    "attention_scores.csv",
}  # fmt: skip
PICTURES = {
    "losses_embedded_validation_concat", "positions_embedded_validation_concat_length_256",
    "learned_fire", "biases_fire", "attention_alibi", "training",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report(epath.Path(folder), "A report", sample_results(), None, None)
    return folder


class Page(HTMLParser):
    """Pictures, tables' cells, links and whatever a page would fetch or run."""

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


def test_the_same_rows_give_the_same_bytes_and_can_be_read_back(folder, tmp_path):
    again = read_results(epath.Path(folder))
    for kind in dataclasses.fields(Results):
        assert list(getattr(again, kind.name)) == list(getattr(sample_results(), kind.name))
    write_report(epath.Path(tmp_path), "A report", again, None, None)
    for path in sorted(folder.iterdir()):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
    write_report(epath.Path(tmp_path), "A report", sample_results(), None, None)
    runs = Results(runs=sample_results().runs[:1])
    write_report(epath.Path(tmp_path), "A report", runs, None, None)
    assert {path.name for path in tmp_path.iterdir()} == {"index.html", "report.md", "runs.csv"}
    text = (tmp_path / "report.md").read_text()
    assert "No length has been scored yet" in text and "No step has been logged" in text


def test_a_run_that_goes_on_is_told(text):
    going = dataclasses.replace(facts("fire", 0), step=400)
    assert "fire-seed0 (400 of 1,000)" in _text(Results(runs=[going]))
    assert "Not at their last step" not in text


def _text(results: Results, other=None) -> str:
    return as_markdown("", report_sections(results, None, other))


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "report.md").read_text()


def test_lines_are_means_over_seeds_with_their_spread():
    (lines,) = loss_lines(sample_results()).values()
    assert [line.name for line in lines] == ["fire", "alibi", "rope"], "best at the longest first"
    for line in lines:
        for length, nll in zip(LENGTHS, LOSSES[line.name], strict=True):
            point = line.nats[length]
            assert point.value == pytest.approx(nll + 0.01) and point.seeds == 2
            assert point.error == pytest.approx(0.02 / 2**0.5)
    alone = with_losses(sample_results(), [r for r in sample_results().losses if "0" in r.run])
    (lines,) = loss_lines(alone).values()
    assert {point.error for line in lines for point in line.nats.values()} == {0.05}


def test_a_length_without_text_has_no_number():
    rows = list(sample_results().losses)
    nothing = dict.fromkeys(("nll", "nll_stderr", "perplexity", "bits_per_byte"), float("nan"))
    counts = dict.fromkeys(("sequences", "tokens", "bytes"), 0)
    rows.append(dataclasses.replace(rows[0], length=512, **counts, **nothing))
    (lines,) = loss_lines(with_losses(sample_results(), rows)).values()
    assert all(set(line.nats) == set(LENGTHS) for line in lines)


def test_other_vocabularies_are_compared_in_bits_alone(text):
    results = sample_results()
    assert "Nats per token (log perplexity)" in text and "In bits per byte alone" not in text
    rows = [
        loss_row(run, length, nll, tokens=2048 if run.encoding == "rope" else 4096)
        for run in results.runs
        for length, nll in zip(LENGTHS, LOSSES[run.encoding], strict=True)
    ]
    mixed = _text(Results(runs=results.runs, losses=rows))
    assert "In bits per byte alone" in mixed and "Beside the paper" not in mixed
    assert "Bits per byte, mean" in mixed and "nats" not in mixed.lower()


def test_the_order_is_held_against_the_papers():
    results = sample_results()
    (lines,) = loss_lines(results).values()
    words, table = beside_the_paper(results, lines)
    assert "Only the order can be compared" in words[0]
    for apart in ("0.37M parameters", "trained at 64", "embedded, concat"):
        assert apart in words[0]
    trained, twice, four = words[1:]
    assert "rope < fire < alibi; in the paper fire < rope < alibi" in trained
    assert "2 are in the paper's order, 1 the other way" in trained
    assert "rope before fire" in trained
    # Table 4 at 4096: fire 3.046, rope 3.375, alibi 3.438.
    assert "fire < alibi < rope; in the paper fire < rope < alibi" in twice
    assert "fire < alibi < rope; in the paper fire < rope < alibi" in four
    assert table.header[1:] == [
        "x1: ours", "paper (2048)", "x2: ours", "paper (4096)", "x4: ours", "paper (8192)",
    ]  # fmt: skip
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["fire"][:4] == ["1.810", "3.054", "1.790", "3.046"]


def test_the_papers_own_scale_is_not_called_another():
    results = sample_results()
    same = [
        dataclasses.replace(run, parameters=124_000_000, train_length=2048, data="c4, concat")
        for run in results.runs
    ]
    rows = [dataclasses.replace(row, length=row.length * 32) for row in results.losses]
    results = dataclasses.replace(results, runs=same, losses=rows)
    (lines,) = loss_lines(results).values()
    assert beside_the_paper(results, lines)[0][0].startswith("The paper's scale")


def test_against_another_report():
    results = sample_results()
    better = with_losses(results, [dataclasses.replace(r, nll=r.nll - 0.5) for r in results.losses])
    alone = Results(runs=results.runs, losses=results.losses)
    told = _text(alone, ("before", better))
    assert "Against before" in told and "Beside the paper" not in told
    assert told.count("+0.500") == 9
    elsewhere = with_losses(
        results, [dataclasses.replace(r, dataset="arxiv") for r in results.losses]
    )
    assert "nothing scored on the same text" in _text(alone, ("there", elsewhere))


def test_a_damaged_file_and_no_results_are_told(folder, tmp_path):
    with pytest.raises(UserError, match=r"no runs\.csv"):
        read_results(epath.Path(tmp_path))
    (tmp_path / "runs.csv").write_bytes((folder / "runs.csv").read_bytes())
    (tmp_path / "biases.csv").write_text("run,bias\nfire,0\n")
    with pytest.raises(RunFailed, match="biases.csv has other columns"):
        read_results(epath.Path(tmp_path))


def test_text_of_runs_cannot_become_markup():
    table = Table("a <b> caption", ["", "<i>"], [["a|b", "<script>"]])
    assert "<script>" not in table.html() and "&lt;script&gt;" in table.html()
    assert "a\\|b" in table.markdown()
