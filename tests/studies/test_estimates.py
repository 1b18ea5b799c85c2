"""The tables of estimates and times in docs/ agree with the JSON files of docs/evidence."""

import json
import re

import pytest
from command import EVIDENCE, ROOT

from fire_lm.bench import data

DOCS = ROOT / "docs"


def test_the_documentation_has_the_memory_of_attention():
    report = json.loads((EVIDENCE / "bench_attention.json").read_text())
    page = " ".join((DOCS / "performance.md").read_text().split())
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
        **{
            f"{name} / NoPE, 8 sequences, n = 2048": figures(f"{name} / NoPE, B=8 n=2048")
            for name in ("FoX", "FIRE with FoX", "PoPE")
        },
        "memory beyond NoPE's, 1 sequence, n = 8192: FIRE; KERPLE": memory(8192),
        "the same, n = 32768": memory(32768),
    }


def test_the_documentation_has_the_compilers_estimates_of_the_kernels():
    report = json.loads((EVIDENCE / "bench_attention_tpu.json").read_text())
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
    for file in (EVIDENCE / "preflight").glob("*.json"):
        _, size, encoding, _ = file.stem.split("_", 3)
        name = f"| {size.upper()} {encoding.upper().replace('ROPE', 'RoPE')}"
        expected[name, preflight_row(json.loads(file.read_text()))] = file
    found = {(re.split(r",| \|", line)[0], line.split(" | ", 1)[1]) for line in lines}
    assert found == expected.keys() and len(lines) == len(expected) == 13


def infini_row(name: str, report: dict) -> str:
    """Return the line of the table of Infini-attention's costs for a file of this name."""
    encoding, rule, length, _ = name.split("_")
    label = f"{encoding.upper().replace('ROPE', 'RoPE')}, {rule}, {int(length):,}"
    found = [each.strip() for each in preflight_row(report).split("|")]
    token = "|"
    if "generation" in report:
        generation, program = report["generation"], report["programs"]["generation"]
        prompts, state = generation["prompts"].partition(",")[0], generation["cache"] / 2**20
        memory = sum(program[kind] for kind in ("arguments", "temporary", "code")) / 2**30
        milliseconds = 1e3 * generation["token"]["seconds"]
        token = f"{prompts}: {memory:.2f} GiB, {state:.0f} MiB, {milliseconds:.1f} ms |"
    return " | ".join([f"| {label}", *(found[i] for i in (0, 1, 3, 4)), token])


def test_the_documentation_has_the_estimates_of_infini_attention():
    """docs/infini_attention.md has one line for each file, and no others."""
    page = (DOCS / "infini_attention.md").read_text().splitlines()
    files = (EVIDENCE / "infini_preflight").glob("*.json")
    expected = {infini_row(file.stem, json.loads(file.read_text())) for file in files}
    assert {
        line for line in page if re.match(r"\| (FIRE|RoPE), (linear|delta), ", line)
    } == expected


def test_the_documentation_has_the_parts_of_a_step():
    report = json.loads((EVIDENCE / "preflight/c4_125m_fire_v4-256.json").read_text())
    lines = (DOCS / "preflight.md").read_text().splitlines()
    for part, seconds in report["programs"]["training step"]["parts"].items():
        forward, backward = (f"{1e3 * one:.1f}" for one in seconds)
        assert f"{part:29}  {forward:7}  {backward}" in lines, part


def test_the_documentation_has_the_estimate_of_finetuning():
    """docs/finetuning.md has the estimate for 25,000 steps of the paper's recipe."""
    report = json.loads((EVIDENCE / "preflight/finetune_125m_fire_v4-128.json").read_text())
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
    report = json.loads((EVIDENCE / "preflight/c4_125m_fire_v4-8.json").read_text())
    program, found = report["programs"]["generation"], report["generation"]
    memory = sum(program[kind] for kind in ("arguments", "temporary", "code")) / 2**30
    token = found["token"]["seconds"]
    prompts = program["seconds"] - 127 * token  # the prompts produce the first of 128 new tokens
    page = (DOCS / "preflight.md").read_text()
    times = f"{1e3 * prompts:.0f} ms | {1e3 * token:.1f} ms"
    assert f"| {memory:.2f} of 30.75 | {found['cache'] / 2**30:.2f} | {times} |" in page


@pytest.mark.parametrize("vocabulary", ["bytes", "t5"])
def test_the_documentation_has_the_times_of_reading(vocabulary):
    report = json.loads((EVIDENCE / f"bench_data_{vocabulary}.json").read_text())
    assert data.text(report) in (DOCS / "blocks.md").read_text()
