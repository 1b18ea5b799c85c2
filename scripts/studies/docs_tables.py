"""Writes the tables and figures of docs/ that come from docs/evidence.

usage: .venv/bin/python scripts/studies/docs_tables.py [figures]

Each table stands on its page between two comments. With `figures`, the SVG files of the studies are
drawn again too, which takes a minute.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import infini_tables
import length_phases
import masked_tables
import page_parts
import recent_encodings
import rotary_periods
import synthetic_tables
from command import EVIDENCE
from etils import epath

from fire_lm.reporting import accuracies, loss_curves, task_tables
from fire_lm.reporting.length_sweep import families, loss_picture, loss_styles, loss_table
from fire_lm.reporting.page import Picture, Table
from fire_lm.reporting.report import verdict_sections
from fire_lm.reporting.task_lines import suite_scores
from fire_lm.results import SweepRow, read_table
from fire_lm.results.folder import Results, read_results


@functools.cache
def results_of(study: str) -> Results:
    return read_results(epath.Path(EVIDENCE / study))


def losses(study: str, columns: Sequence[int] = ()) -> str:
    """Return the table of losses of a study, with the chosen columns or with all."""
    (family,) = families(results_of(study))
    return _chosen(loss_table(family.lines, family.scale), columns).markdown()


def _chosen(table: Table, columns: Sequence[int]) -> Table:
    if not columns:
        return table
    kept = (0, *columns)
    best = frozenset((row, kept.index(column)) for row, column in table.best if column in kept)
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table("", [table.header[i] for i in kept], rows, best)


def task_scores(study: str, columns: Sequence[int]) -> str:
    (scores,) = suite_scores(results_of(study))
    return _chosen(task_tables.score_table(scores), columns).markdown()


def verdict(study: str) -> str:
    (section,) = verdict_sections(results_of(study))
    (table,) = (part for part in section.parts if isinstance(part, Table))
    return table.markdown()


_WARM_STARTS = {
    "fire": "`fire`",
    "fire_from_kerple": "`fire_from_kerple`",
    "fire_from_alibi": "`fire_from_alibi`",
    "fire_g_from_kerple": "`fire_from_kerple`, init_gamma 1",
    "fire_g": "`fire_g`",
    "kerple_log": "`kerple_log`",
    "kerple_per_layer": "`kerple_log`, one set per layer",
}


def warm_starts() -> str:
    """Return the means (least to most) over seeds of each arm, at 1, 4 and 16 times the length."""
    losses: dict[str, dict[int, list[float]]] = {}
    for row in read_table(epath.Path(EVIDENCE / "warm_start.csv"), SweepRow):
        lengths = losses.setdefault(row.run.rpartition("-")[0], {})
        lengths.setdefault(row.length, []).append(row.nll)
    rows = [
        [name]
        + [
            f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"
            for _, values in sorted(losses[arm].items())[::2]
        ]
        for arm, name in _WARM_STARTS.items()
    ]
    best = {
        (min(range(len(rows)), key=lambda row: rows[row][column]), column) for column in (1, 2, 3)
    }
    return Table("", ["", "x1", "x4", "x16"], rows, frozenset(best)).markdown()


_NAMES = {
    "nope": "NoPE", "fire": "FIRE", "fire_s": "FIRE-S", "fire_g": "FIRE-G",
    "fire_appendix_e": "FIRE of Appendix E", "alibi": "ALiBi", "t5": "T5", "rope": "RoPE",
    "kerple_log": "KERPLE (log)", "sandwich": "Sandwich",
}  # fmt: skip


def attention_times() -> str:
    """Return the two ratios of each line of the benchmark of attention on a CPU."""
    report = json.loads((EVIDENCE / "bench_attention.json").read_text())
    peers = {
        "fire": "torch (as one would write it; SDPA)",
        "fire_appendix_e": "torch",
        "nope": "torch SDPA",
        "rope": "torch SDPA",
    }
    rows = []
    for row in report["rows"]:
        if row["encoding"] != "nope" and (row["library"] != "torch" or row["encoding"] == "fire"):
            whose = "ours" if row["library"] == "fire_lm" else "torch"
            ratios = row["forward"]["x_nope"], row["train"]["x_nope"]
            rows.append([f"{_NAMES[row['encoding']]} / NoPE, {whose}", *ratios])
    for row in report["peers"]:
        line = f"{_NAMES[row['encoding']]}, ours / {peers[row['encoding']]}"
        rows.append([line, row["forward"], row["train"]])
    body = [[name, f"{forward:.2f}", f"{train:.2f}"] for name, forward, train in rows]
    return Table("", ["", "forward", "train"], body).markdown()


def model_times() -> str:
    report = json.loads((EVIDENCE / "bench_model.json").read_text())
    rows = []
    for row in sorted(
        report["rows"], key=lambda row: (row["encoding"] != "nope", row["forward"]["x_nope"])
    ):
        forward, train = row["forward"], row["train"]
        seconds = f" ({forward['seconds']:.1f} s; {train['seconds']:.1f} s)"
        name = _NAMES[row["encoding"]] + seconds * (row["encoding"] == "nope")
        ratios = f"{forward['x_nope']:.2f}", f"{train['x_nope']:.2f}"
        rows.append([name, *ratios, f"{row['tokens_per_second']:.0f}"])
    return Table("", ["over NoPE", "forward", "train", "tokens/s, train"], rows).markdown()


def generation_times() -> str:
    report = json.loads((EVIDENCE / "bench_generate.json").read_text())
    header = ["encoding", "prompt, over NoPE", "ms per new token", "new token, over NoPE"]
    rows = []
    for row in report["rows"]:
        prefill, token = row["prefill"], row["token"]
        times = f"{1e3 * token['seconds']:.1f}", f"{token['x_nope']:.2f}"
        rows.append([row["encoding"], f"{prefill['x_nope']:.2f}", *times])
    return Table("", header, rows).markdown()


_RECENT = ("recent", "recent_4_layers", "recent_4m", "recent_4m_4_layers", "recent_8m")
_THREE = (1, 3, 5)  # the training length, four and sixteen times this length
# The tables of each page, by the name in their comments.
TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "results.md": {
        "mini": lambda: losses("mini"),
        "mini, verdict": lambda: verdict("mini"),
        "larger": lambda: losses("larger"),
        "gpu": lambda: losses("gpu"),
        "warm starts": warm_starts,
        **{
            name: functools.partial(losses, name, _THREE)
            for name in (
                *("fire_ablations", "short", "family", "schedules", "resampling", "scalings"),
                "rope_base",
            )
        },
        **{name: functools.partial(losses, name, _THREE) for name in _RECENT},
        **{
            f"{name}, differences": functools.partial(recent_encodings.differences, name)
            for name in _RECENT
        },
        "alibi_pi": lambda: losses("alibi_pi"),
        "length_phases": length_phases.losses,
        "length_phases, differences": length_phases.differences,
        "long_eval": lambda: task_scores("long_eval", (2, 4, 5, 7)),
    },
    "frozen_normaliser.md": {
        "frozen": lambda: losses("frozen"),
        "length_1024": lambda: losses("length_1024"),
    },
    "infini_attention.md": {
        "infini": infini_tables.losses,
        "infini, positions": infini_tables.positions,
        "passkey": infini_tables.passkey,
    },
    "masked.md": {
        "masked": lambda: masked_tables.by_length("rope"),
        "masked, fire": lambda: masked_tables.by_length("fire"),
        "masked, every encoding": masked_tables.every_encoding,
    },
    "synthetic_results.md": synthetic_tables.TABLES,
    "performance.md": {
        "attention": attention_times,
        "model": model_times,
        "generation": generation_times,
    },
}


def writer(name: str) -> str:
    return f"{Path(__file__).name}: {name}"


def pictures(study: str) -> Iterator[Picture]:
    """Yield the pictures of a study that its folder has."""
    results, folder = results_of(study), EVIDENCE / study
    styles = loss_styles(results)
    for family in families(results):
        if len(families(results)) == 1 and any(folder.glob("losses_*.svg")):
            yield loss_picture(family)
    if any(folder.glob("positions_*.svg")):
        yield from loss_curves.positions(results, styles)
    if any(folder.glob("length_accuracy*.svg")):
        yield from accuracies.pictures(results)
    for section in [*task_tables.sections(results), *rotary_periods.sections(results)]:
        yield from (part for part in section.parts if isinstance(part, Picture))


def figures() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each SVG file of a study."""
    own = ("budgets", "drift_probes", "length_phases", "masked")  # other programs draw these
    for folder in sorted({path.parent for path in EVIDENCE.glob("*/*.svg")}):
        if folder.name not in own:
            for picture in pictures(folder.name):
                if (path := folder / f"{picture.name}.svg").exists():
                    yield path, picture.image.svg
    yield EVIDENCE / "length_phases" / "length_phases.svg", length_phases.picture().image.svg
    yield EVIDENCE / "masked" / "masked_accuracy.svg", masked_tables.picture().image.svg


def main(arguments: Sequence[str]) -> None:
    for page, tables in TABLES.items():
        for name, table in tables.items():
            page_parts.write(page, writer(name), table())
    if "figures" in arguments:
        for path, svg in figures():
            path.write_text(svg)


if __name__ == "__main__":
    main(sys.argv[1:])
