"""`hf:FOLDER`: the ids, the way back, bytes of tokens, blocks. Where tokenizers is installed."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file
from sample_run import command, write_text
from test_import import gpt2_folder

import fire_lm
from fire_lm import cli
from fire_lm.data import Blocks, TextData, scoring_text, train_iterator
from fire_lm.data.hub_vocabulary import load_hub
from fire_lm.data.tokens import decode, encode, end_of_document, unknown
from fire_lm.errors import UserError
from fire_lm.interop.tokenizer import tokenizer_files

TEXTS = ("so they say", "  two spaces\n\tand a tab", "café 火 🔥", "<|endoftext|>", "x")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A byte-level BPE as GPT-2's, whose post-processor takes spaces from offsets."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["so they say that positions are fire and rope"] * 9, trainer)
    folder = tmp_path_factory.mktemp("hub") / "gpt2"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return folder, tokenizer


def test_ids_stand_one_higher(hub):
    folder, tokenizer = hub
    data = TextData("nowhere", vocabulary=f"hf:{folder}")
    assert end_of_document(data) == 1
    for text in TEXTS:
        ids = encode(data, text)
        if "<|" not in text:  # spelled out, it is text here and a token there
            assert [one - 1 for one in ids] == tokenizer.encode(text).ids
        assert 1 not in ids and decode(data, [0, *ids, 1]) == text
        assert unknown(data, text) == ""


def test_bytes_of_tokens_sum_to_those_of_texts(hub):
    """A token of text has its own bytes, the space before it included."""
    vocabulary = load_hub(f"hf:{hub[0]}")
    texts = [*(text.encode() for text in TEXTS), b""]
    ids, counts, lengths = vocabulary.encode_documents(texts)
    assert lengths.sum() == ids.size == counts.size
    ends = np.cumsum(lengths)
    for text, end, length in zip(texts, ends, lengths, strict=True):
        assert counts[end - length : end].sum() == len(text)
        np.testing.assert_array_equal(ids[end - length : end], vocabulary.encode(text.decode()))
    first = [len(vocabulary.decode([one])) for one in ids[: lengths[0]]]
    np.testing.assert_array_equal(counts[: lengths[0]], first)


def test_folders_that_do_not_serve(hub, tmp_path):
    with pytest.raises(UserError, match="there is no file .*/tokenizer.json"):
        load_hub(f"hf:{tmp_path}")
    (tmp_path / "tokenizer.json").write_text((hub[0] / "tokenizer.json").read_text())
    with pytest.raises(UserError, match="has no eos_token_id"):
        load_hub(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"fire_lm_configuration": []}')
    with pytest.raises(UserError, match="`fire-lm export` wrote this folder"):
        load_hub(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is not a tokenizer"):
        load_hub(f"hf:{tmp_path}")


def test_an_export_has_the_ids_of_the_run(hub):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    data = TextData("nowhere", vocabulary=f"hf:{hub[0]}")
    files = tokenizer_files(data)
    built = tokenizers.Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    built.encode_special_tokens = True  # as transformers does for split_special_tokens
    for text in TEXTS:
        ids = encode(data, text).tolist()
        assert built.encode(text).ids == [0, *ids]
        assert built.decode([0, *ids, 1], skip_special_tokens=True) == text
    config = files["tokenizer_config.json"]
    assert config["eos_token"] == "<|endoftext|>" and built.token_to_id("<|endoftext|>") == 1


@pytest.mark.ci
def test_a_gpt2_with_its_tokenizer(hub, tmp_path, capsys):
    """Imported, it continues a prompt, is scored on blocks, and goes back to transformers' form."""
    source, run = tmp_path / "gpt2", tmp_path / "runs/gpt2"
    gpt2_folder(source, vocab_size=hub[1].get_vocab_size(), eos_token_id=0)
    shutil.copy(hub[0] / "tokenizer.json", source)
    text, blocks = write_text(tmp_path / "text"), tmp_path / "blocks"
    written = ["corpus", "blocks", f"--data_dir={text}", f"--vocabulary=hf:{source}"]
    assert cli.main([*written, f"--output={blocks}"]) == 0
    imported = ["import", f"--from={source}", f"--output={run}", f"--gin.DATA_DIR={blocks}"]
    assert cli.main(imported) == 0
    capsys.readouterr()
    assert cli.main(["generate", str(run), "--prompt=so they", "--new_tokens=4"]) == 0
    printed = capsys.readouterr().out.rstrip("\n")
    assert printed == fire_lm.open_run(run).generate("so they", new_tokens=4)[0].text
    assert cli.main(["sweep", str(run), "--gin.length_sweep.tokens=2048"]) == 0
    (row,) = fire_lm.open_run(run).rows().losses
    assert (row.step, row.length) == (0, 12) and 0 < row.bytes and 3 < row.nll < 30
    assert cli.main(["export", str(run), f"--output={tmp_path / 'hf'}"]) == 0
    found = load_file(tmp_path / "hf/model.safetensors")["transformer.wte.weight"]
    original = load_file(source / "model.safetensors")["transformer.wte.weight"]
    np.testing.assert_array_equal(found[1:], original)


@pytest.mark.ci
def test_blocks_and_scoring(hub, tmp_path, capsys):
    """The same text from blocks and on the fly, with its bytes; training needs blocks."""
    text, name = write_text(tmp_path / "text"), f"hf:{hub[0]}"
    written = ["corpus", "blocks", f"--data_dir={text}", f"--vocabulary={name}"]
    assert cli.main([*written, f"--output={tmp_path / 'blocks'}"]) == 0
    read = TextData(str(text), vocabulary=name)
    blocks = Blocks(str(tmp_path / "blocks"), vocabulary=name)
    one, other = (scoring_text(data, length=32, num_sequences=4) for data in (read, blocks))
    np.testing.assert_array_equal(one.targets, other.targets)
    np.testing.assert_array_equal(one.byte_counts, other.byte_counts)
    kept = decode(read, one.targets[0])
    assert len(kept) == one.byte_counts[0].sum() and "so they say" in kept
    batch = next(train_iterator(blocks, length=16, batch_size=2, seed=0))
    assert batch["targets"].shape == (2, 16)
    with pytest.raises(UserError, match="write blocks with it"):
        train_iterator(read, length=16, batch_size=2, seed=0)
    capsys.readouterr()
    flags = [f"--gin.VOCABULARY={name}", "--gin.TRAIN_STEPS=3"]
    assert cli.main(command(text, tmp_path / "run", *flags)) == 2
    assert "write blocks with it" in capsys.readouterr().err
