"""configs/paper/finetuned/: files reproduce each printed score, and their headers are correct."""

import functools
import re
from pathlib import Path

import published
import pytest
from finetuned_rows import FinetunedRow, rows, scale_of
from test_paper_configs import STEP
from training_experiments import experiment_of

from fire_lm.experiment import load_experiment
from fire_lm.runs.resuming import Start
from fire_lm.training import AdamW, Finetuning

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILES = {path.stem: path.read_text() for path in (CONFIGS / "paper" / "finetuned").glob("*.gin")}
MODELS = sorted(FILES)
FINETUNED = ("Table 1", "Table 2", "Table 3", "Table 11", "Table 13")
ROWS = {(row.model, row.suite): row for row in rows()}
# The quick tests load some rows; the ci tier loads all of them, with one data set each.
QUICK = [("base_fire", "scrolls_gov_report"), ("base_rope_pi_32k", "scrolls_narrative_qa"),
         ("large_rope_pi", "glue_super_glue")]  # fmt: skip
ALL = sorted({(row.model, row.data_sets[0]) for row in rows()})


def of_model(model: str) -> list[FinetunedRow]:
    return [row for row in rows() if row.model == model]


def test_every_printed_score_has_files_that_exist():
    scores = [
        cell for cell in published.published()
        if cell.source in FINETUNED and cell.dataset != "c4"
    ]  # fmt: skip
    assert len(scores) == 112 + 18 + 3 + 64 + 210
    for cell in scores:
        row = ROWS[cell.model, cell.dataset]
        if cell.metric == f"{cell.dataset}_average":
            assert cell.printed in (row.average, "71.14")
            data_sets = row.data_sets
        else:
            lengths = (cell.length, None)
            assert any((cell.metric, length) in row.scores for length in lengths), cell
            data_sets = (row.data_set(cell.metric),)
        assert row.model in FILES and (CONFIGS / f"paper/{row.source}.gin").exists()
        for data_set in data_sets:
            assert (CONFIGS / f"finetune/{data_set}.gin").exists(), cell
            assert (CONFIGS / f"tasks/{row.evaluation(data_set)}.gin").exists(), cell
    assert set(MODELS) == {row.model for row in rows()} and len(MODELS) == 18


@functools.cache
def source_text(model: str) -> str:
    return load_experiment([f"configs/paper/{model}.gin"]).text()


@pytest.mark.parametrize(
    "model, data_set",
    [*QUICK, *(pytest.param(*pair, marks=pytest.mark.ci) for pair in ALL if pair not in QUICK)],
)
def test_a_row_is_finetuned_by_the_papers_recipe(model, data_set, tmp_path):
    row = next(row for row in of_model(model) if data_set in row.data_sets)
    (tmp_path / "config.gin").write_text(source_text(row.source))
    files = [f"finetune/{data_set}.gin", f"paper/finetuned/{model}.gin"]
    arguments = [*(f"--gin_file=configs/{file}" for file in files), f"--gin.INIT_FROM={tmp_path}"]
    config = Start(experiment_of(["finetune", *arguments])).experiment
    run: Finetuning = config.train
    small, long = data_set == "glue_super_glue", model == "base_rope_pi_32k"
    length = 1024 if small else 32_768 if long else 8192
    assert (run.batch_size, run.train_length) == (256 if small else 128, length)
    assert (run.train_steps, run.seed) == (25_000, 0)
    assert run.model.dropout == run.model.attention_dropout == 0.1
    assert run.optimizer == AdamW(
        learning_rate=1e-5, warmup_steps=0, final_fraction=1.0, b1=0.9, b2=0.95,
        weight_decay=0.1, clip_norm=1.0,
    )  # fmt: skip
    assert config.label == published.cells(model)[0].encoding
    encoding = run.model.encodings[0]
    assert encoding.train_length == 2048, "that of pretraining"
    if "_rope_pi" in model:
        assert encoding.scaling.factor == (16 if long else 4)
    chips = run.mesh.data * run.mesh.fsdp * run.mesh.tensor
    assert run.batch_size % chips == 0
    assert {scale_of(row, config) for row in of_model(model) if data_set in row.data_sets} == {
        "paper"
    }


# --- Headers


def header(model: str) -> str:
    """Return the header as one line without comment marks."""
    lines = [line for line in FILES[model].splitlines() if line.startswith("#")]
    return " ".join(line.removeprefix("#").strip() for line in lines)


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_the_commands_and_the_places(model):
    said, (row, *_) = header(model), of_model(model)
    data_set = "scrolls_qasper" if row.suite == "scrolls" else row.data_sets[0]
    run = f"gs://BUCKET/runs/{model}_{data_set}"
    assert (
        f"fire-lm finetune --gin_file=configs/finetune/{data_set}.gin \\ "
        f"--gin_file=configs/paper/finetuned/{model}.gin --gin.DATA_DIR=gs://BUCKET/tasks \\ "
        f"--gin.INIT_FROM=gs://BUCKET/runs/{row.source} \\ --workdir={run} "
        f"fire-lm evaluate {run}@all \\ --gin_file=configs/tasks/{row.evaluation(data_set)}.gin "
    ) in said
    assert f"INIT_FROM = 'gs://YOUR_BUCKET/runs/{row.source}'\n" in FILES[model]
    place = said.partition(" of the paper.")[0].rpartition(": ")[2]
    numbers = {int(number) for row in of_model(model) for number in re.findall(r"\d+", row.places)}
    assert [int(number) for number in re.findall(r"\d+", place)] == sorted(numbers)


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_all_printed_scores(model):
    said = header(model)
    for cell in published.cells(model):
        if cell.dataset == "narrative_qa" and cell.length:
            assert f"{cell.printed} at {cell.length}" in said
        elif cell.dataset in ("scrolls", "narrative_qa", "glue_super_glue"):
            name = re.sub("^(scrolls|super_glue|glue)_", "", cell.metric)
            name = "average" if cell.metric.endswith("_average") else name
            assert re.search(rf"\b{name} {re.escape(cell.printed)}\b", said), cell


# The compiler's estimate for 125M and FIRE at 128 x 8192 with dropout, two sequences per chip.
COMPILED = (114.7, 131.9, 4.8, 251.4)
# The ms of all collectives of a step of pretraining; finetuning does not overlap them.
COLLECTIVES = {"base": 4.9, "large": 19.3}


def step_time(model: str, length: int, sequences: int) -> float:
    """Return the ms per step: XLA's part scales with tokens, the kernels' part with pairs.

    With dropout XLA's part takes longer, and at 8192 the kernels' part is shorter than the number
    of pairs suggests; both factors are those of the compiled step.
    """
    if (model, length) in {("base_fire", 8192), ("base_fire_s", 8192)}:
        return COMPILED[3]
    size, pretrained = model.split("_")[0], 2 if model.startswith("base") else 1
    xla, kernels, _, _ = STEP[size, "fire" if "fire" in model else "rope"]
    collectives = COLLECTIVES[size]
    tokens = sequences * length / (pretrained * 2048)
    with_dropout = COMPILED[0] / (4 * STEP["base", "fire"][0])
    at_8192 = COMPILED[1] / STEP["base", "fire"][1]
    pairs = {1024: 1 / 2, 8192: at_8192, 32_768: 8 * at_8192}[length]
    return tokens * xla * with_dropout + pairs * kernels + collectives


def test_the_compiled_step_is_that_of_the_documentation():
    page = (CONFIGS.parent / "docs" / "preflight.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith("| 125M FIRE, finetuning |"))
    xla, kernels, collectives, total = COMPILED
    assert "v4-128: 64" in row and f"| {xla} + {kernels} + {collectives} = {total} |" in row


@pytest.mark.parametrize("model", MODELS)
def test_a_header_has_hardware_and_chip_hours(model):
    said, text = header(model), FILES[model]
    sizes = [int(size) for size in re.findall(r"^MeshShape\.\w+ = (\d+)$", text, re.MULTILINE)]
    chips = sizes[0] * sizes[1]
    assert f"Hardware: {chips} TPU v4 chips (ours)." in said and len(sizes) == 2
    stated = re.findall(r"(\d+) chips x ([\d,]+) steps x ([\d.]+) ms = ([\d,.]+) chip-hours", said)
    expected = {
        (1024, 256) if data_set == "glue_super_glue" else (8192, 128)
        for row in of_model(model)
        for data_set in row.data_sets
    }
    expected = {(32_768, 128)} if model == "base_rope_pi_32k" else expected
    times = [
        step_time(model, length, batch // chips) for length, batch in sorted(expected, reverse=True)
    ]
    assert [float(found[2]) for found in stated] == pytest.approx(times, abs=0.051)
    for of, steps, time, hours in stated:
        assert (int(of), steps) == (chips, "25,000")
        product = chips * 25_000 * float(time) / 3.6e6
        assert float(hours.replace(",", "")) == pytest.approx(product, rel=0.006)


def test_the_documentation_has_the_chip_hours_of_the_headers():
    page = (CONFIGS.parent / "docs" / "paper_rows.md").read_text()
    (table,) = re.findall(r"\| 25,000 steps \|.*?\n\n", page, re.DOTALL)
    for fire, other in (("base_fire", "base_rope"), ("large_fire", "large_rope")):
        for number in range(2):
            cells = []
            for model in (fire, other):
                found = re.findall(r"([\d.]+) ms = ([\d.]+) chip-hours", header(model))[number]
                cells.append(", ".join(found))
            assert f"| {' | '.join(cells)} |" in table
    assert "|  | 758.9, 675 |" in table
