"""seqio tasks for the data sets of suites: examples, metrics, registration, and the mixture."""

import shutil

import pytest
import sample_suites
from suite_data import EOS, by_id, data_dir, examples, raw, source, text_of

from fire_lm.data.suites import seqio_tasks
from fire_lm.errors import UserError

__all__ = ["data_dir", "source"]  # fixtures


def test_evaluation_rows_are_questions_with_all_their_references(source, data_dir):
    records = sample_suites.scrolls("qasper")["validation"]
    expected: dict[str, list[str]] = {}
    for record in records:
        expected.setdefault(record["id"], []).append(record["output"])
    found = by_id(examples("fire_lm:scrolls_qasper", data_dir, "validation"))
    assert {key: [a.decode() for a in e["answers"]] for key, e in found.items()} == expected
    assert {len(answers) for answers in expected.values()} == {1, 2, 3}
    for record in records:
        example = found[record["id"]]
        assert text_of(example["inputs"]) == record["input"]
        assert example["inputs_pretokenized"].decode() == record["input"]
        assert text_of(example["targets"]) == expected[record["id"]][0]
        assert example["group"] == example["id"] and len(example["choices"]) == 0


def test_training_rows_are_pairs_and_test_rows_have_no_answers(data_dir):
    records = sample_suites.scrolls("qasper")["train"]
    found = examples("fire_lm:scrolls_qasper", data_dir, "train")
    pairs = sorted((text_of(e["inputs"]), text_of(e["targets"])) for e in found)
    assert pairs == sorted((record["input"], record["output"]) for record in records)
    for example in examples("fire_lm:scrolls_qasper", data_dir, "test"):
        assert len(example["answers"]) == 0 and list(example["targets"]) == [EOS]


def test_tokens_are_cut_from_the_right_and_end(data_dir):
    for example in examples("fire_lm:scrolls_qasper", data_dir, "validation", inputs=40, targets=6):
        assert len(example["inputs"]) == 40 and len(example["targets"]) <= 6
        assert example["inputs"][-1] == example["targets"][-1] == EOS
        assert example["inputs_pretokenized"].startswith(raw(example["inputs"][:39]))


@pytest.mark.parametrize(
    "name", ["scrolls_qasper", pytest.param("scrolls_contract_nli", marks=pytest.mark.ci)]
)
def test_predictions_through_the_seqio_task(data_dir, name):
    """Used as an evaluator would use it, the reference scores 100 and an empty answer scores 0."""
    task = seqio_tasks.task_or_mixture(f"fire_lm:{name}", str(data_dir), "bytes")
    of = examples(f"fire_lm:{name}", data_dir, "validation")
    targets = [task.postprocess_fn(text_of(e["targets"]), example=e, is_target=True) for e in of]
    for answer, score in ((lambda e: text_of(e["targets"]), 100), (lambda e: "", 0)):
        given = [task.postprocess_fn(answer(e), example=e, is_target=False) for e in of]
        (metric,) = task.metric_fns
        assert set(metric(targets, given).values()) == {score}


def test_tasks_are_registered_after_one_listing_of_the_folder(data_dir, monkeypatch):
    """In a bucket, a listing makes about two requests for each data set."""
    listed = []

    def data_sets(folder: str) -> list[str]:
        listed.append(folder)
        return original(folder)

    original = seqio_tasks.metadata.data_sets
    monkeypatch.setattr(seqio_tasks.metadata, "data_sets", data_sets)
    folder = f"{data_dir}/."  # another folder, as far as the registry is concerned
    names = seqio_tasks.register(folder, "bytes")
    for name in names:
        seqio_tasks.seqio.TaskRegistry.remove(name)
    assert len(names) > 1 and listed == [folder]


def test_names_that_are_not_there(data_dir):
    with pytest.raises(UserError, match="no task fire_lm:scrolls_qaspr. Did you mean fire_lm:scr"):
        seqio_tasks.task_or_mixture("fire_lm:scrolls_qaspr", str(data_dir), "bytes")
    for name, options in (
        ("scrolls_quality", f"--suite=scrolls --data_dir={data_dir} --source=FOLDER"),
        ("long_eval_lines", f"--suite=long_eval --data_dir={data_dir}"),
    ):
        with pytest.raises(UserError) as raised:
            seqio_tasks.task_or_mixture(f"fire_lm:{name}", str(data_dir), "bytes")
        assert str(raised.value).splitlines() == [
            f"{data_dir} has no data set {name}",
            f"`fire-lm corpus tasks {options}` writes it",
        ]
    with pytest.raises(UserError, match="mixture fire_lm:glue_super_glue: glue_cola, "):
        seqio_tasks.task_or_mixture("fire_lm:glue_super_glue", str(data_dir), "bytes")


@pytest.mark.ci
def test_what_a_folder_holds_is_registered_and_another_folder_replaces_it(data_dir, tmp_path):
    import seqio

    names = ["fire_lm:scrolls_qasper", "fire_lm:scrolls_contract_nli"]
    shutil.copytree(data_dir, tmp_path / "copy")
    try:
        assert seqio_tasks.register(str(data_dir), "bytes") == names
        first = seqio.TaskRegistry.get(names[0])
        assert seqio_tasks.register(str(data_dir), "bytes") == names
        assert seqio.TaskRegistry.get(names[0]) is first
        seqio_tasks.register(str(tmp_path / "copy"), "bytes")
        assert seqio.TaskRegistry.get(names[0]) is not first
    finally:
        for name in names:
            seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add_provider(names[0], first)
    try:
        with pytest.raises(UserError, match="other code has registered"):
            seqio_tasks.register(str(data_dir), "bytes")
    finally:
        seqio.TaskRegistry.remove(names[0])


@pytest.mark.ci
def test_the_evaluator_of_seqio(data_dir):
    """A user's own loop works: seqio's Evaluator with a model that returns the references."""
    import seqio

    try:
        seqio_tasks.register(str(data_dir), "bytes")
        evaluator = seqio.Evaluator(
            "fire_lm:scrolls_qasper",
            seqio.DecoderFeatureConverter(pack=False),
            eval_split="validation",
            sequence_length={"inputs": 256, "targets": 64},
        )
        answers = [
            list(e["targets"]) for e in evaluator.cached_task_datasets["fire_lm:scrolls_qasper"]
            .as_numpy_iterator()
        ]  # fmt: skip

        def predict(dataset):
            width = max(map(len, answers))
            return [
                (int(i), answers[int(i)] + [0] * (width - len(answers[int(i)]))) for i, _ in dataset
            ]

        metrics, _ = evaluator.evaluate(compute_metrics=True, step=0, predict_fn=predict)
        assert metrics.result()["fire_lm:scrolls_qasper"]["f1"] == 100
    finally:
        for name in ("fire_lm:scrolls_qasper", "fire_lm:scrolls_contract_nli"):
            seqio.TaskRegistry.remove(name)
