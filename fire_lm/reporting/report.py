"""What a report says, section by section; and its files: page, Markdown, CSV, SVG and PNG."""

from __future__ import annotations

import re
from collections.abc import Sequence

from etils import epath

from fire_lm.reporting import encoding_figures, figures, timing
from fire_lm.reporting.bench_times import ModelTimes
from fire_lm.reporting.comparison import against, beside_the_paper
from fire_lm.reporting.page import Picture, Section, Table, as_html, as_markdown
from fire_lm.reporting.results import Results, RunFacts, write_results
from fire_lm.reporting.seeds import Line, loss_lines, one_vocabulary, scored_in
from fire_lm.reporting.sweep_rows import SweepRow


def write_report(
    folder: epath.Path,
    title: str,
    results: Results,
    times: ModelTimes | None,
    other: tuple[str, Results] | None,
) -> list[Section]:
    """Writes all files of a report; pictures of an earlier one that are no longer in it go.

    Args:
      times: of `fire-lm bench model`, if there are some.
      other: the name and results of what it is compared with; None is the paper.
    """
    sections = report_sections(results, times, other)
    write_results(folder, results)
    pictures = [part for s in sections for part in s.parts if isinstance(part, Picture)]
    for path in folder.iterdir():
        if path.suffix in (".svg", ".png") and path.stem not in {p.name for p in pictures}:
            path.unlink()
    for picture in pictures:
        (folder / f"{picture.name}.svg").write_text(picture.image.svg)
        (folder / f"{picture.name}.png").write_bytes(picture.image.png)
    (folder / "report.md").write_text(as_markdown(title, sections))
    (folder / "index.html").write_text(as_html(title, sections))
    return sections


def report_sections(
    results: Results, times: ModelTimes | None, other: tuple[str, Results] | None
) -> list[Section]:
    return [
        _what_was_run(results),
        *_losses(results, other),
        _section("Loss by position", figures.positions(results), _NO_POSITIONS),
        _section(
            "What the encodings learned",
            [*encoding_figures.learned(results), *encoding_figures.biases(results)],
            _NO_LEARNED,
        ),
        _section(
            "Attention scores with and without position interpolation",
            encoding_figures.scores(results),
            _NO_SCORES,
        ),
        timing.section(times),
        _section("Training", figures.training(results), _NO_METRICS),
        _settings(results),
    ]


_NO_SWEEP = "No length has been scored yet: `fire-lm sweep RUN` does it."
_NO_POSITIONS = "There are none: `fire-lm sweep RUN` writes position_losses.csv."
_NO_METRICS = "No step has been logged yet."
_NO_LEARNED = "None of these encodings learns a scalar or a bias, or no checkpoint was there."
_NO_SCORES = (
    "None of these encodings knows position interpolation (RoPE and ALiBi do), or there was no "
    "checkpoint and text to compute scores from."
)


def _section(title: str, pictures: Sequence[Picture], otherwise: str) -> Section:
    """Says why, where there is no picture."""
    return Section(title, [] if pictures else [otherwise], pictures)


def _what_was_run(results: Results) -> Section:
    rows = [_run_row(arm, runs) for arm, runs in results.arms().items()]
    going = [
        f"{run.run} ({run.step:,} of {run.train_steps:,})" for run in results.runs if not run.ended
    ]
    words = [
        f"{len(results.runs)} runs of {len(rows)} kinds; those of a kind differ by seed alone."
    ]
    if going:
        words.append(f"Not at their last step when this was written: {', '.join(going)}.")
    header = ["", "seeds", "model", "parameters", "of these encoding", "trained at", "steps",
              "batch", "data", "machine", "begun", "hours"]  # fmt: skip
    return Section(
        "What was run, and where",
        words,
        [Table("Hours are of all runs of a kind together.", header, rows)],
    )


def _run_row(arm: str, runs: Sequence[RunFacts]) -> list[str]:
    def told(name: str, form: str = "") -> str:
        values = dict.fromkeys(format(getattr(run, name), form) for run in runs)
        return ", ".join(values)

    steps = dict.fromkeys(
        f"{run.step:,}" if run.ended else f"{run.step:,} of {run.train_steps:,}" for run in runs
    )
    return [
        arm,
        told("seed"),
        told("model"),
        told("parameters", ","),
        told("encoding_parameters", ","),
        told("train_length"),
        ", ".join(steps),
        told("batch_size"),
        told("data"),
        told("machine"),
        min(run.began for run in runs),
        f"{sum(run.seconds for run in runs) / 3600:.2f}",
    ]


def _losses(results: Results, other: tuple[str, Results] | None) -> list[Section]:
    """One section for each text and protocol, and what it is compared with."""
    found = loss_lines(results)
    if not found:
        return [Section("Loss against length", [_NO_SWEEP])]
    others = loss_lines(other[1]) if other else {}
    sections = []
    for scored, lines in found.items():
        rows = [row for row in results.losses if scored_in(row) == scored]
        nats = one_vocabulary(rows)
        words = [_budget(rows), *_other_steps(results, rows)]
        if not nats:
            words.append(
                "In bits per byte alone: the runs have other vocabularies, so that a token is "
                "not the same amount of text for all of them."
            )
        parts: list[Table | Picture] = [
            loss_table(lines, nats),
            figures.losses(results, scored, lines, nats),
        ]
        sections.append(Section(f"Loss against length: {scored}", words, parts))
        if other:
            table = against(lines, others.get(scored, []), other[0], nats)
            said = [] if table else [f"{other[0]} has nothing scored on the same text."]
            sections.append(
                Section(f"Against {other[0]}: {scored}", said, [table] if table else [])
            )
        elif nats:
            said, table = beside_the_paper(results, [line for line in lines if not line.variant])
            if table:
                sections.append(Section(f"Beside the paper: {scored}", said, [table]))
    return sections


def _budget(rows: Sequence[SweepRow]) -> str:
    tokens = sorted({row.tokens for row in rows if row.tokens})
    counts = " or ".join(f"{count:,}" for count in tokens)
    return f"Each number is over {counts} tokens, the same text at every length."


def _other_steps(results: Results, rows: Sequence[SweepRow]) -> list[str]:
    """Where what was scored is not the newest of a run."""
    last = {run.run: run.step for run in results.runs}
    steps = {row.run: row.step for row in rows}
    told = [
        f"{run} at {step:,} of {last[run]:,}" for run, step in steps.items() if step < last[run]
    ]
    return (
        [f"Scored at an earlier step than the run has reached: {', '.join(told)}."] if told else []
    )


def loss_table(lines: Sequence[Line], nats: bool) -> Table:
    """Means over seeds with their spread, best of each length stressed."""
    lengths = sorted({length for line in lines for length in line.nats})
    points = [line.nats if nats else line.bits for line in lines]
    trained = {line.train_length for line in lines}
    header = [""]
    for length in lengths:
        multiple = f" (x{length / min(trained):g})" if len(trained) == 1 else ""
        header.append(f"{length}{multiple}")
    best = frozenset(
        (min(range(len(lines)), key=lambda i: points[i][n].value if n in points[i] else 1e9), j)  # noqa: B023
        for j, n in enumerate(lengths, start=1)
    )
    rows = [
        [line.name, *(f"{p[n].value:.3f} ± {p[n].error:.3f}" if n in p else "" for n in lengths)]
        for line, p in zip(lines, points, strict=True)
    ]
    seeds = sorted({point.seeds for p in points for point in p.values()})
    spread = (
        "standard error over text" if seeds == [1] else
        f"standard deviation over {' or '.join(map(str, seeds))} seeds"
    )  # fmt: skip
    unit = "Nats per token (log perplexity)" if nats else "Bits per byte"
    return Table(f"{unit}, mean ± {spread}.", header, rows, best)


def _settings(results: Results) -> Section:
    """One column for each kind of run."""
    arms = results.arms()
    values = {(s.run, s.name): s.value for s in results.settings}
    names = list(dict.fromkeys(setting.name for setting in results.settings))
    rows = []
    for name in names:
        cells = []
        for runs in arms.values():
            of_arm = dict.fromkeys(values.get((run.run, name), "") for run in runs)
            cells.append(", ".join(of_arm))
        rows.append([name, *(re.sub(r"\s+", " ", cell) for cell in cells)])
    if not rows:
        return Section("Settings that differ", ["There are none."])
    table = Table("A blank: that kind of run has no such setting.", ["", *arms], rows)
    return Section("Settings that differ", [], [table])
