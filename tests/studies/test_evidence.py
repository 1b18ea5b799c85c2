"""The documentation agrees with our own results (docs/evidence)."""

import json
import re
import statistics
from pathlib import Path

import beside_the_paper
import pytest
from etils import epath
from published import log_perplexity_cells
from study_pairs import ranged, unclear

from fire_lm.bench import data
from fire_lm.cli import main
from fire_lm.results import bench_times, read_rows
from fire_lm.results.folder import read_results

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "docs" / "evidence" / "mini"
ENCODINGS = {"fire", "fire_s", "fire_g", "rope", "alibi", "kerple_log", "t5", "nope", "learned"}
FIGURE = "losses_embedded_validation_concat.svg"
DOCS = ROOT / "docs"
COMMAND = "fire-lm report docs/evidence/mini"


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    assert main(["report", str(MINI), f"--output={folder}"]) == 0
    return folder


def table_of(markdown: str) -> str:
    """Return the first table of the section on loss against length."""
    (table, *_) = re.findall(r"(?:^\|.*\n)+", markdown.split("\n## Loss against length")[1], re.M)
    return table.strip()


RESULTS = " ".join((DOCS / "results.md").read_text().split())


def test_the_documentation_has_the_table_and_the_figure_of_the_evidence(report):
    table, page = table_of((report / "report.md").read_text()), (DOCS / "results.md").read_text()
    assert len(table.splitlines()) == 2 + len(ENCODINGS)
    again = f"`{COMMAND} --output=DIR` draws it again: copy it from DIR"
    assert table in page, f"the table of docs/results.md is not the evidence's; {again}/report.md"
    assert (report / FIGURE).read_bytes() == (MINI / FIGURE).read_bytes(), f"{again}/{FIGURE}"
    assert f"(evidence/mini/{FIGURE})" in page and COMMAND in page
    assert table.replace("1.8", "1.9", 1) not in page


def test_the_documentation_counts_pairs_as_the_comparison_does():
    (section,) = beside_the_paper.sections(read_results(epath.Path(MINI)))
    found = re.findall(
        r"^At ([124])x the .*? order: (\d+)\. Reversed \((\d+)\):.*?Not distinguishable \((\d+);",
        "\n".join(section.paragraphs),
        flags=re.MULTILINE,
    )
    assert [line[0] for line in found] == ["1", "2", "4"]
    agree, turned, unclear = ([line[column] for line in found] for column in (1, 2, 3))
    assert (
        f"Of the 21 pairs of the seven encodings that are also in the paper's Table 4 (Table 2 for "
        f"FIRE-S), {agree[0]} are in the paper's order at the training length, {agree[1]} at twice "
        f"that length and {agree[2]} at four times. {unclear[0]}, {unclear[1]} and {unclear[2]} "
        f"pairs cannot be told apart, in the family of all pairs at a length, and {turned[0]}, "
        f"{turned[1]} and {turned[2]} are reversed."
    ) in RESULTS


def test_the_documentation_quotes_the_top_of_the_report(report):
    first = (report / "report.md").read_text().split("\n## ")[1]
    assert first.startswith("What these runs tell")
    assert f'"{first.strip().splitlines()[-1]}"' in RESULTS


def test_the_documentation_says_which_encodings_cannot_be_told_apart():
    for name in ("alibi", "t5", "nope", "kerple_log"):
        assert 64 not in unclear("mini", "fire", name)
    assert unclear("mini", "fire_s", "fire") == [64, 128, 256, 512, 1024]
    assert f"ahead, by {ranged('mini', 256, 'fire', 'kerple_log')} at four times" in RESULTS
    assert f"it is {ranged('mini', 256, 'fire', 'kerple_log')} nats per token behind" in RESULTS
    assert (
        f"ahead of FIRE at the training length, by {ranged('mini', 64, 'fire', 'rope')}" in RESULTS
    )
    fire, rope = (log_perplexity_cells(f"base_{name}")[2048] for name in ("fire", "rope"))
    assert f"in the paper, it is {rope.value - fire.value:.3f} behind." in RESULTS
    assert unclear("mini", "fire_g", "kerple_log") == []
    ahead = sorted(ranged("mini", n, "kerple_log", "fire_g") for n in (64, 128, 256, 512, 1024))
    assert f"at every length, by {ahead[0]} to {ahead[-1]}; among all pairs, only" in RESULTS


def warm_start_rows() -> dict[str, list[str]]:
    """Return "mean (min-max)" over the seeds of each arm, at 1, 4 and 16 times the length."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in read_rows(MINI.parent / "warm_start.csv"):
        lengths = found.setdefault(row.run.rpartition("-")[0], {})
        lengths.setdefault(row.length, []).append(row.nll)
    return {
        arm: [
            f"{statistics.fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"
            for _, values in sorted(lengths.items())[::2]
        ]
        for arm, lengths in found.items()
    }


def test_the_documentation_has_the_warm_starts_of_the_evidence():
    names = {
        "fire": "`fire`",
        "fire_from_kerple": "`fire_from_kerple`",
        "fire_from_alibi": "`fire_from_alibi`",
        "fire_g_from_kerple": "`fire_from_kerple`, init_gamma 1",
        "fire_g": "`fire_g`",
        "kerple_log": "`kerple_log`",
        "kerple_per_layer": "`kerple_log`, one set per layer",
    }
    page, rows = (DOCS / "results.md").read_text().replace("**", ""), warm_start_rows()
    assert rows.keys() == names.keys()
    for arm, cells in rows.items():
        assert len(cells) == 3
        assert f"| {names[arm]} | {' | '.join(cells)} |" in page, arm


def test_evidence_names_no_path_of_the_machine_that_made_it():
    """Runs are named as in the commands of docs/results.md, below `runs/`."""
    for file in MINI.parent.rglob("*"):
        if file.suffix in (".csv", ".json"):
            found = re.search(r"[\"']/\w[^\"'\s]*", file.read_text())
            assert found is None, f"{file}: {found}"


def test_every_arm_has_the_same_seeds_text_and_lengths():
    rows = read_rows(MINI / "length_sweep.csv")
    assert {row.encoding for row in rows} == ENCODINGS
    for encoding in ENCODINGS:
        own = [row for row in rows if row.encoding == encoding]
        assert len({row.run for row in own}) == 3 and {row.step for row in own} == {1000}
        lengths = {64} if encoding == "learned" else {64, 128, 256, 512, 1024}
        assert {row.length for row in own} == lengths
    assert len({(row.tokens, row.bytes, row.dataset, row.protocol) for row in rows}) == 1


def test_every_arm_had_the_same_search():
    """The learning rate was searched on another seed; the best at the training length was used."""
    searched = {}
    for row in read_rows(MINI / "search.csv"):
        assert (row.length, row.step) == (64, 1000)
        searched.setdefault(row.encoding, {})[row.run.rpartition("rate-")[2]] = row.nll
    assert set(searched) == ENCODINGS
    for encoding, losses in searched.items():
        assert set(losses) == {"2e-3", "4e-3", "8e-3"}, encoding
    results = read_results(epath.Path(MINI))
    encoding_of = {run.run: run.encoding for run in results.runs}
    chosen = {
        encoding_of[setting.run]: setting.value
        for setting in results.settings
        if setting.name == "AdamW.learning_rate"
    }
    for encoding, losses in searched.items():
        best = min(losses, key=lambda rate: losses[rate])
        assert float(chosen[encoding]) == float(best), encoding


def test_the_documentation_has_the_times_of_the_evidence():
    times = bench_times.read(epath.Path(MINI.parent) / "bench_model.json")
    page = (DOCS / "performance.md").read_text()
    names = {"nope": "NoPE (4.5 s; 18.5 s)", "alibi": "ALiBi", "t5": "T5", "rope": "RoPE",
             "kerple_log": "KERPLE (log)", "fire_s": "FIRE-S", "fire": "FIRE"}  # fmt: skip
    assert {row.encoding for row in times.rows} == set(names)
    for row in times.rows:
        told = f"{row.forward.x_nope:.2f} | {row.train.x_nope:.2f} | {row.tokens_per_second:.0f}"
        assert f"| {names[row.encoding]} | {told} |" in page


def test_the_documentation_has_the_times_of_generation():
    found = json.loads((MINI.parent / "bench_generate.json").read_text())
    page = (DOCS / "performance.md").read_text()
    for row in found["rows"]:
        prefill, token = row["prefill"], row["token"]
        told = f"| {row['encoding']} | {prefill['x_nope']:.2f} | {1e3 * token['seconds']:.1f} | "
        assert told + f"{token['x_nope']:.2f} |" in page
    assert {(row["length"], row["cache_bytes"] >> 20) for row in found["rows"]} == {(2048, 146)}


def attention_lines(report: dict) -> dict[str, tuple[float, float]]:
    """Return the two ratios in every line of the table of attention on a CPU."""
    names = {"nope": "NoPE", "fire": "FIRE", "fire_s": "FIRE-S", "fire_g": "FIRE-G",
             "fire_appendix_e": "FIRE of Appendix E", "alibi": "ALiBi", "t5": "T5", "rope": "RoPE",
             "kerple_log": "KERPLE (log)", "sandwich": "Sandwich"}  # fmt: skip
    told = {"nope": "torch SDPA", "rope": "torch SDPA", "fire_appendix_e": "torch",
            "fire": "torch (as one would write it; SDPA)"}  # fmt: skip
    lines = {}
    for row in report["rows"]:
        if row["encoding"] == "nope" or (row["library"] == "torch" and row["encoding"] != "fire"):
            continue
        whose = "ours" if row["library"] == "fire_lm" else "torch"
        ratios = row["forward"]["x_nope"], row["train"]["x_nope"]
        lines[f"{names[row['encoding']]} / NoPE, {whose}"] = ratios
    for row in report["peers"]:
        line = f"{names[row['encoding']]}, ours / {told[row['encoding']]}"
        lines[line] = row["forward"], row["train"]
    return lines


def test_the_documentation_has_the_times_of_attention():
    report = json.loads((MINI.parent / "bench_attention.json").read_text())
    page = " ".join((DOCS / "performance.md").read_text().split())
    table = re.findall(r"\| ([^|]* / [^|]*) \| ([\d.]+) \| ([\d.]+) \|", page)
    expected = attention_lines(report)
    assert len(expected) == 14
    assert {name: (forward, train) for name, forward, train in table} == {
        name: (f"{forward:.2f}", f"{train:.2f}") for name, (forward, train) in expected.items()
    }
    short, long = report["memory"]
    mebibytes = [row[f"{kind}_bytes"] / 2**20 for row in (short, long)
                 for kind in ("forward", "gradient")]  # fmt: skip
    assert (
        "takes {:,.0f} MiB of temporary memory at length 8,192 and {:,.0f} MiB with gradients, and "
        "{:,.0f} and {:,.0f} MiB at 16,384"
    ).format(*mebibytes) in page
    (errors,) = report["accuracy"]
    assert errors["output_error"] < 2.05e-8 and errors["gradient_error"] < 9.5e-6
    assert max(row["logit_difference"] for row in report["peers"]) < 3.25e-6


def kernel_lines(measures: dict[str, str]) -> dict[str, str]:
    """Return the figures of docs/attention_kernels.md by the labels of its lines."""
    initial, trained = "FIRE at initialisation", "FIRE, L = 1400, most kinks of 100 draws"

    def figures(*names: str) -> str:
        return "; ".join(measures[name].split()[0] for name in names)

    def of_fire(batch: int, length: int) -> str:
        label = f"NoPE, B={batch} n={length}"
        return figures(f"{initial} / {label}", f"{trained} / {label}")

    def memory(length: int) -> str:
        names = (f"{name}'s temporary memory beyond NoPE's, B=1 n={length}"
                 for name in ("FIRE", "KERPLE-log"))  # fmt: skip
        return f"{figures(*names)} MiB"

    kerple = "KERPLE-log / NoPE, B=8 n="
    return {
        "NoPE / JAX's flash attention, n = 2048": figures("NoPE / JAX's flash attention"),
        "FIRE / NoPE, 8 sequences, n = 2048": of_fire(8, 2048),
        "FIRE / NoPE, 8 sequences, n = 8192": of_fire(8, 8192),
        "FIRE / NoPE, 2 sequences, n = 2048": of_fire(2, 2048),
        "KERPLE / NoPE, 8 sequences, n = 2048; 8192": figures(f"{kerple}2048", f"{kerple}8192"),
        "KERPLE / NoPE, 2 sequences, n = 2048": figures("KERPLE-log / NoPE, B=2 n=2048"),
        "memory beyond NoPE's, 1 sequence, n = 8192: FIRE; KERPLE": memory(8192),
        "the same, n = 32768": memory(32768),
    }


def test_the_documentation_has_the_compilers_estimates_of_the_kernels():
    report = json.loads((MINI.parent / "bench_attention_tpu.json").read_text())
    page = (DOCS / "attention_kernels.md").read_text()
    lines = kernel_lines(report["measures"])
    found = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|", page, flags=re.MULTILINE))
    assert {name: found.get(name) for name in lines} == lines
    assert f"libtpu {report['libtpu']}" in page and f"--tpu {report['slice']}" in page


def preflight_row(report: dict) -> str:
    """Return the line of the table of estimates, without the run's name."""
    programs = report["programs"]
    step, sweep = programs["training step"], programs.get("sweep at 8192")

    def gibibytes(program: dict) -> float:
        return sum(program[kind] for kind in ("arguments", "temporary", "code")) / 2**30

    collectives = sum(size for _, size in step["collectives"].values()) / 2**20
    xla, kernels, links, overlapped, total = (
        1e3 * step.get(kind, 0.0) for kind in ("xla", "kernels", "links", "overlapped", "seconds")
    )
    swept = f"{gibibytes(sweep):.2f} GiB, {1e3 * sweep['seconds']:.0f} ms" if sweep else ""
    return (
        f"{report['slice']}: {report['chips']} | "
        f"{gibibytes(step):.2f} of {step['usable'] / 2**30:.2f} | {collectives:,.0f} | "
        f"{xla:.1f} + {kernels:.1f} + {links - overlapped:.1f} = {total:.1f} | "
        f"{100 * report['mfu_estimate']:.1f} % | {swept} |"
    )


def test_the_documentation_has_the_compilers_estimates():
    """docs/preflight.md has one line for each file, and no others."""
    page = (DOCS / "preflight.md").read_text()
    lines = [line for line in page.splitlines() if re.match(r"\| (125M|350M) ", line)]
    expected = {}
    for file in (MINI.parent / "preflight").glob("*.json"):
        _, size, encoding, _ = file.stem.split("_", 3)
        name = f"| {size.upper()} {encoding.upper().replace('ROPE', 'RoPE')}"
        expected[name, preflight_row(json.loads(file.read_text()))] = file
    found = {(re.split(r",| \|", line)[0], line.split(" | ", 1)[1]) for line in lines}
    assert found == expected.keys() and len(lines) == len(expected) == 13


def test_the_documentation_has_the_parts_of_a_step():
    report = json.loads((MINI.parent / "preflight/c4_125m_fire_v4-256.json").read_text())
    lines = (DOCS / "preflight.md").read_text().splitlines()
    for part, seconds in report["programs"]["training step"]["parts"].items():
        forward, backward = (f"{1e3 * one:.1f}" for one in seconds)
        assert f"{part:29}  {forward:7}  {backward}" in lines, part


def test_the_documentation_has_the_estimate_of_finetuning():
    """docs/finetuning.md has the estimate for 25,000 steps of the paper's recipe."""
    report = json.loads((MINI.parent / "preflight/finetune_125m_fire_v4-128.json").read_text())
    step = report["programs"]["training step"]
    memory = sum(step[kind] for kind in ("arguments", "temporary", "code")) / 2**30
    hours = 25_000 * step["seconds"] / 3600
    page = " ".join((DOCS / "finetuning.md").read_text().split())
    assert report["passed"] and report["chips"] == 64
    assert f"estimate is {memory:.2f} of {step['usable'] / 2**30:.2f} GiB per chip" in page
    assert (
        f"{1e3 * step['seconds']:.0f} ms per step, so {hours:.1f} hours or "
        f"{64 * hours:.0f} chip-hours for 25,000 steps"
    ) in page


def test_the_documentation_has_the_estimates_of_generation():
    report = json.loads((MINI.parent / "preflight/c4_125m_fire_v4-8.json").read_text())
    program, found = report["programs"]["generation"], report["generation"]
    memory = sum(program[kind] for kind in ("arguments", "temporary", "code")) / 2**30
    token = found["token"]["seconds"]
    prompts = program["seconds"] - 127 * token  # the prompts produce the first of 128 new tokens
    page = (DOCS / "preflight.md").read_text()
    times = f"{1e3 * prompts:.0f} ms | {1e3 * token:.1f} ms"
    assert f"| {memory:.2f} of 30.75 | {found['cache'] / 2**30:.2f} | {times} |" in page


@pytest.mark.parametrize("vocabulary", ["bytes", "t5"])
def test_the_documentation_has_the_times_of_reading(vocabulary):
    report = json.loads((MINI.parent / f"bench_data_{vocabulary}.json").read_text())
    assert data.text(report) in (DOCS / "blocks.md").read_text()
