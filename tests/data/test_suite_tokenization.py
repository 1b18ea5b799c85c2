"""Only a part of a long input is tokenised, but a row has the same tokens as the complete input."""

import io

import numpy as np
import pytest
import sentencepiece
from sample_suites import prose
from suite_data import data_dir, source

from fire_lm.data import TextToText, train_iterator, vocabularies
from fire_lm.data.quiet_tensorflow import seqio, tf
from fire_lm.data.suites import tokenization

__all__ = ["data_dir", "source"]  # fixtures
KINDS = {
    "unigram": {},
    "bpe": {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True},
    "kept_spaces": {"remove_extra_whitespaces": False},
    "of_several_words": {"split_by_whitespace": False},
    "space_last": {"treat_whitespace_as_suffix": True},
    "other_rules": {"normalization_rule_name": "", "normalization_rule_tsv": "{folder}/rules.tsv"},
}


def texts() -> list[str]:
    """Return prose, and texts that must not be divided."""
    rng = np.random.default_rng(4)
    plain = prose(rng, 1500)
    return [
        plain,
        plain.replace(" ", "  \u200b "),  # runs of spaces, which models collapse
        "漢字「é」\n" * 2000,  # no ASCII letters
        "a" * 9000 + " b" * 3000,  # no space where one is expected
        ("a b" + " " * 500) * 30 + plain,  # few tokens in many characters
        plain[:300],
        "",
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "rules.tsv").write_text("65 20 67\t41 43\n")  # "e g" becomes "AC"
    rng = np.random.default_rng(5)
    for name, changed in KINDS.items():
        settings = {
            key: value.format(folder=folder) if isinstance(value, str) else value
            for key, value in changed.items()
        }
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([prose(rng, 12) for _ in range(300)]),
            model_writer=model,
            **{"vocab_size": 400, "hard_vocab_limit": False, "minloglevel": 2} | settings,
            **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
        )
        (folder / f"{name}.model").write_bytes(model.getvalue())
    return folder


def tokens_of(vocabulary: seqio.Vocabulary, limit: int | None) -> list[np.ndarray]:
    features = {"inputs": seqio.Feature(vocabulary)}
    dataset = tf.data.Dataset.from_tensor_slices({"inputs": texts()})
    lengths = None if limit is None else {"inputs": limit}
    found = tokenization.tokenize(dataset, features, lengths)
    return [example["inputs"] for example in found.as_numpy_iterator()]


@pytest.mark.parametrize("name", ["bytes", "unigram", "bpe", "kept_spaces"])
@pytest.mark.parametrize("limit", [1, 333])
def test_the_first_tokens_are_those_of_the_whole_text(models, name, limit):
    vocabulary = vocabularies.load("bytes" if name == "bytes" else str(models / f"{name}.model"))
    assert vocabularies.divides_at_spaces(vocabulary)
    whole, part = tokens_of(vocabulary, None), tokens_of(vocabulary, limit)
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(other, one[: len(other)])
        assert len(other) >= min(limit, len(one))
    assert len(part[0]) < len(whole[0]) / 2  # only a part was read
    assert [len(whole[n]) == len(part[n]) for n in (2, 3, 5, 6)] == [True] * 4


@pytest.mark.parametrize("name", ["of_several_words", "space_last", "other_rules"])
def test_models_whose_tokens_may_depend_on_later_words_read_all(models, name):
    vocabulary = vocabularies.load(str(models / f"{name}.model"))
    assert not vocabularies.divides_at_spaces(vocabulary)
    for one, other in zip(tokens_of(vocabulary, None), tokens_of(vocabulary, 40), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("truncation", ["head", "middle"])
def test_rows_are_those_of_whole_inputs(data_dir, models, monkeypatch, truncation):
    """The inputs are Qasper's, of 3000 words."""
    calls = []

    def rows(divides: bool) -> list[np.ndarray]:
        def counted(vocabulary):
            calls.append(divides)
            return divides

        monkeypatch.setattr(vocabularies, "divides_at_spaces", counted)
        data = TextToText(
            "fire_lm:scrolls_qasper", 32, str(models / "unigram.model"), str(data_dir), truncation
        )
        batches = train_iterator(data, length=128, batch_size=54, seed=0)
        return [next(batches)["targets"] for _ in range(2)]

    for one, other in zip(rows(True), rows(False), strict=True):
        np.testing.assert_array_equal(one, other)
    # Rows that keep the end of an input need the complete input.
    assert set(calls) == ({True, False} if truncation == "head" else set())
