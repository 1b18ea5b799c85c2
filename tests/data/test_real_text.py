"""Real C4, WikiText-2 and LaTeX through the corpus verb, every construction and a sweep.

Runs where the texts exist: in ../shared/data next to the checkout, or in the folder given by
FIRE_LM_REAL_TEXT. They are not part of the project.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from sample_run import command

import fire_lm.data
from fire_lm import cli
from fire_lm.data import TextData
from fire_lm.data.spec import CONSTRUCTIONS
from fire_lm.results import SweepRow, read_table

FOLDER = Path(
    os.environ.get("FIRE_LM_REAL_TEXT")
    or Path(__file__).resolve().parents[2].parent / "shared" / "data"
)
T5 = FOLDER / "vocab" / "t5_cc_all.32000.100extra.model"
SETS = ("c4_sample", "wikitext2", "arxiv_tex")

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real texts in {FOLDER}"),
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    articles = folder / "wikitext2.jsonl"
    text = "".join((FOLDER / "wikitext2" / f"{n}.txt").read_text() for n in ("valid", "test"))
    parts = re.split(r"(?m)^(?= = [^=\n]+ = \n)", text)
    articles.write_text("".join(json.dumps({"text": part}) + "\n" for part in parts))
    for name in SETS:
        source = articles if name == "wikitext2" else FOLDER / name
        arguments = [f"--from={source}", f"--data_dir={folder}", f"--name={name}"]
        assert cli.main(["corpus", *arguments, "--validation_percent=20"]) == 0
    return folder


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_a_sweep_reads_what_corpus_check_foretells(data_dir, name, construction):
    from fire_lm.data.on_the_fly.survey import row_contents, survey

    vocabulary = str(T5) if name != "arxiv_tex" else "bytes"
    data = TextData(
        str(data_dir), f"{name}:1.0.0", vocabulary=vocabulary, construction=construction
    )
    contents = survey(data, "validation", 10**6)
    longest = 512 if name == "c4_sample" else 8192
    text = fire_lm.data.scoring_text(data, length=longest, num_sequences=10**6)
    (forecast,) = row_contents(construction, contents.tokens, [longest])
    assert (len(text.targets), int(np.sum(text.targets != 0))) == (
        forecast.sequences,
        forecast.tokens,
    )
    if construction in ("cut", "packed"):
        assert text.byte_counts.sum(dtype=np.int64) == contents.text_bytes


def test_latex_is_unknown_to_t5_and_c4_is_not(data_dir):
    shares = {
        name: TextData(str(data_dir), f"{name}:1.0.0", vocabulary=str(T5)).unknown_share("train")
        for name in SETS
    }
    assert shares["arxiv_tex"] > 0.1 and shares["c4_sample"] < 0.01


def test_a_run_is_swept_over_all_of_them(data_dir, tmp_path):
    """A run trained on packed rows of a mixture of the three data sets is swept over each one."""
    mixture = tuple((f"{name}:1.0.0", 1) for name in SETS)
    run = tmp_path / "run"
    more = [f"--gin.TextData.mixture={mixture}", "--gin.TextData.construction=packed"]
    assert cli.main(command(data_dir, run, *more)) == 0
    for construction in CONSTRUCTIONS:
        bindings = [
            f"--gin.TextData.construction={construction}",
            "--gin.EVAL_LENGTHS=32,128",
            "--gin.length_sweep.tokens=16384",
        ]
        assert cli.main(["sweep", str(run), *bindings]) == 0
    rows = read_table(epath.Path(run) / "length_sweep.csv", SweepRow)
    assert {(row.dataset, row.construction, row.length) for row in rows} == {
        (name, construction, length)
        for name in SETS for construction in CONSTRUCTIONS for length in (32, 128)
    }  # fmt: skip
    for row in rows:
        assert 0 < row.nll < 8 and row.bits_per_byte > 0
        if row.construction != "long_documents":
            assert row.tokens >= 4096
    budgets = {(row.dataset, row.construction, row.tokens, row.bytes) for row in rows}
    assert len(budgets) == len(rows) / 2, "the lengths score other text"
