"""Mixtures: rows in proportion to the rates, order by seed, exact positions, and refusals."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import fire_lm.data
from fire_lm import cli
from fire_lm.data import TextData
from fire_lm.data.spec import CONSTRUCTIONS
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment

RATES = (("c4/en:3.1.0", 3.0), ("bbb:1.0.0", 1.0))
A, B = ord("a") + 3, ord("b") + 3  # ids in the byte vocabulary


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> str:
    """Write data sets of the letter a (and empty texts), of b, and of texts mostly too short."""
    from fire_lm.data.corpora import c4_writer
    from fire_lm.data.corpora.text_corpus import write_text_corpus

    folder = tmp_path_factory.mktemp("mixed")
    random = np.random.default_rng(0)

    def texts(letter: str, size: int) -> list[str]:
        return [f"{number} {letter * int(random.integers(4, size))}" for number in range(60)]

    for name, letter, size in (("bbb", "b", 500), ("short", "s", 9)):
        source = folder / f"{name}.jsonl"
        source.write_text("".join(f'{{"text": "{text}"}}\n' for text in texts(letter, size)))
        write_text_corpus(str(source), str(folder), name)
    of_a = {str(number): text.encode() for number, text in enumerate(texts("a", 200))}
    empty = {f"empty/{number}": b"" for number in range(7)}
    c4_writer.write(folder, {"train": of_a | empty, "validation": of_a})
    return str(folder)


def batches(data: TextData, count: int, seed: int = 3, **changes) -> list[dict[str, np.ndarray]]:
    arguments = dict(length=32, batch_size=8, seed=seed) | changes
    iterator = fire_lm.data.train_iterator(data, **arguments)
    return [{**next(iterator), "skipped": np.array(iterator.skipped)} for _ in range(count)]


def share_of_a(found: list[dict[str, np.ndarray]]) -> float:
    """Return the share of the first data set among the rows that contain a letter."""
    targets = np.concatenate([batch["targets"] for batch in found])
    of_a, of_b = (np.any(targets == token, axis=1) for token in (A, B))
    assert not np.any(of_a & of_b), "a row of two data sets"
    assert np.mean(of_a | of_b) > 0.8
    return of_a.sum() / (of_a | of_b).sum()


@pytest.mark.ci
@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_rows_come_at_their_rates_and_a_position_continues_exactly(data_dir, construction):
    data = TextData(data_dir, mixture=RATES, construction=construction, shuffle_buffer=50)
    arguments = dict(length=32, batch_size=8, seed=3)
    iterator = fire_lm.data.train_iterator(data, **arguments)
    found = [next(iterator) for _ in range(60)]
    # 480 rows; within four standard errors.
    assert share_of_a(found) == pytest.approx(0.75, abs=4 * np.sqrt(0.75 * 0.25 / 480))
    state = iterator.get_state()
    assert len(state) < 20_000
    expected = [next(iterator) for _ in range(15)]
    resumed = fire_lm.data.train_iterator(data, **arguments)
    resumed.set_state(state)
    for ours, theirs in zip([next(resumed) for _ in range(15)], expected, strict=True):
        for name in theirs:
            np.testing.assert_array_equal(ours[name], theirs[name])


@pytest.mark.ci
def test_the_rates_and_the_seed_decide(data_dir):
    data = TextData(data_dir, mixture=RATES, shuffle_buffer=50)
    turned = tuple((name, 4 - rate) for name, rate in RATES)
    assert share_of_a(batches(dataclasses.replace(data, mixture=turned), 60)) < 0.4
    one, same, other = (batches(data, 20, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a["targets"], b["targets"]) for a, b in zip(one, same, strict=True))
    assert any((a["targets"] != b["targets"]).any() for a, b in zip(one, other, strict=True))


@pytest.mark.ci
def test_skipped_documents_are_counted(data_dir):
    """An epoch of c4, which gives three of four rows, skips 7 of its 67 documents."""
    data = TextData(data_dir, mixture=RATES, construction="cut", shuffle_buffer=1)
    found = batches(data, 100, length=600)
    epochs = np.sum(np.concatenate([b["targets"] for b in found]) == A, axis=1).astype(bool).sum()
    skipped = sum(int(batch["skipped"]) for batch in found)
    assert 7 * (epochs // 60) <= skipped <= 7 * (epochs // 60 + 2)


@pytest.mark.ci
def test_a_position_of_other_rates_is_refused(data_dir):
    data = TextData(data_dir, mixture=RATES, shuffle_buffer=50)
    arguments = dict(length=32, batch_size=8, seed=3)
    state = fire_lm.data.train_iterator(data, **arguments).get_state()
    other = dataclasses.replace(data, mixture=(RATES[0], ("bbb:1.0.0", 2.0)))
    with pytest.raises(
        UserError, match="saved with tfds_name 3 c4/en:3.1.0 \\+ 1 bbb:1.0.0, but the run now has"
    ):
        fire_lm.data.train_iterator(other, **arguments).set_state(state)


@pytest.mark.parametrize(
    "mixture, changes, told",
    [
        (
            (("c4/en:3.1.0", 0.0),),
            {},
            "the rate of c4/en:3.1.0 must be positive and finite, not 0.0",
        ),
        ((("c4/en:3.1.0", -1.0),), {}, "must be positive and finite"),
        ((("c4/en:3.1.0", float("inf")),), {}, "must be positive and finite"),
        ((("c4/en:3.1.0", 1.0), ("c4/en:3.1.0", 2.0)), {}, "contains c4/en:3.1.0 twice"),
        (
            (("absent:1.0.0", 1.0),),
            {},
            "The directory contains bbb:1.0.0, c4/en:3.1.0, short:1.0.0",
        ),
        (
            (RATES[0], ("short:1.0.0", 1.0)),
            {"construction": "long_documents"},
            "has at least 32 tokens",
        ),
    ],
)
def test_mixtures_that_cannot_be_read(data_dir, mixture, changes, told):
    with pytest.raises(UserError, match=told):
        batches(TextData(data_dir, mixture=mixture, **changes), 1)


def test_a_mixture_is_not_scored_as_a_whole(data_dir):
    with pytest.raises(UserError, match="cannot be scored as a whole"):
        fire_lm.data.scoring_text(TextData(data_dir, mixture=RATES), length=32, num_sequences=1)


def test_a_mixture_by_gin_alone():
    binding = "TextData.mixture=(('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1))"
    files = ["configs/runs/quickstart.gin", "configs/positions/nope.gin"]
    config = load_experiment(files, [binding])
    assert "TextData.mixture = (('c4/en:3.1.0', 3), ('arxiv:1.0.0', 1))" in config.text()
    arguments = [f"--gin_file={file}" for file in files]
    assert cli.main(["pretrain", "--dry_run", *arguments, "--gin.TextData.mixture=('c4', 3)"]) == 2


@pytest.mark.ci
def test_a_run_over_a_mixture_of_packed_rows_and_its_sweep(data_dir, tmp_path):
    """The sweep has rows for each data set, under its own name."""
    from sample_run import command

    from fire_lm.results import SweepRow, read_table

    bindings = [
        "--gin.TextData.mixture=(('c4/en:3.1.0', 3), ('bbb:1.0.0', 1))",
        "--gin.TextData.construction=packed",
    ]
    run = tmp_path / "run"
    assert cli.main(command(Path(data_dir), run, *bindings)) == 0
    assert cli.main(["sweep", str(run), "--gin.EVAL_LENGTHS=32,64"]) == 0
    from etils import epath

    rows = read_table(epath.Path(run) / "length_sweep.csv", SweepRow)
    found = {(row.dataset, row.construction, row.length) for row in rows}
    assert found == {(name, "packed", n) for name in ("c4", "bbb") for n in (32, 64)}
