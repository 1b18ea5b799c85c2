"""Vocabularies `hf:FOLDER`: their ids, decoding, the bytes of tokens, and blocks."""

import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from sample_run import command, write_text
from test_export import composed
from test_import import gpt2_folder, recipe

import fire_lm
from fire_lm import cli
from fire_lm.data import Blocks, TextData, scoring_text, train_iterator
from fire_lm.data.hub_vocabulary import load_hub
from fire_lm.data.tokens import decode, encode, end_of_document, unknown
from fire_lm.errors import UserError
from fire_lm.interop.tokenizer import tokenizer_files

pytestmark = pytest.mark.interop("tokenizers")

TEXTS = ("so they say", "  two spaces\n\tand a tab", "café 火 🔥", "<|endoftext|>", "x")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Save a byte-level BPE like GPT-2's, whose post-processor trims spaces from offsets."""
    import tokenizers

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
        if "<|" not in text:  # spelled out, it is text for us but a token there
            assert [one - 1 for one in ids] == tokenizer.encode(text).ids
        assert 1 not in ids and decode(data, [0, *ids, 1]) == text
        assert unknown(data, text) == ""


def test_bytes_of_tokens_sum_to_those_of_texts(hub):
    """Each token counts its own bytes, including the space before it."""
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
    with pytest.raises(UserError, match="set eos_token_id in"):
        load_hub(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"fire_lm_configuration": []}')
    with pytest.raises(UserError, match="this folder was written by `fire-lm export`"):
        load_hub(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is not a valid tokenizer"):
        load_hub(f"hf:{tmp_path}")


@pytest.mark.parametrize("eos", [65636, -1, True, 300])
def test_the_end_of_a_document_is_a_token_of_the_folder(hub, tmp_path, eos):
    """The dtype of blocks follows from the size of the vocabulary, so another id would wrap."""
    shutil.copy(hub[0] / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos}))
    told = f"eos_token_id is {eos}.*: it must be the id of a token in tokenizer.json"
    with pytest.raises(UserError, match=told):
        load_hub(f"hf:{tmp_path}")


def test_a_vocabulary_with_a_hole_counts_up_to_its_largest_id(hub, tmp_path):
    content = json.loads((hub[0] / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"]
    last = max(vocab, key=vocab.__getitem__)
    vocab[last] = 400
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    found = load_hub(f"hf:{tmp_path}")
    text = "so they" + last.replace("\u0120", " ")
    ids = found.encode(text)
    assert found.size == 402 and ids.max() == 401 and found.decode([*ids, 350]) == text


def trained(kind: str) -> Any:
    """Train a tokenizer like those of GPT-2, T5 or Llama, with a few hundred pieces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    lines = [
        "so they say that positions are fire and rope",
        "\\\\begin{align} x_1 &= 0",
        *TEXTS,
    ] * 9
    if kind == "t5":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=90,
            special_tokens=["<pad>", "</s>", "<unk>"],
            unk_token="<unk>",
            show_progress=False,
        )
    elif kind == "llama":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        replaced = normalizers.Replace(" ", "\u2581")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replaced])
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(content=" ", left=1),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=330,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>"],
            show_progress=False,
        )
    tokenizer.train_from_iterator(lines, trainer)
    if kind == "llama":  # its bytes are ordinary pieces of the model
        content = json.loads(tokenizer.to_str())
        content["added_tokens"] = content["added_tokens"][:3]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    if kind == "gpt2":  # as code models have for runs of spaces
        tokenizer.add_tokens(["    ", "return"])
    return tokenizer


@pytest.mark.parametrize(
    "kind, end", [("gpt2", "<|endoftext|>"), ("t5", "</s>"), ("llama", "</s>")]
)
def test_544_texts_have_the_ids_of_the_library(kind, end, tmp_path):
    """Our ids are one higher and cover each text's bytes; an export tokenises as the run does."""
    from tokenizers import Tokenizer

    tokenizer = trained(kind)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id(end)}))
    data = TextData("nowhere", vocabulary=f"hf:{tmp_path}")
    built = Tokenizer.from_str(json.dumps(tokenizer_files(data)["tokenizer.json"]))
    for one in (tokenizer, built):  # as "split_special_tokens" does in transformers
        one.encode_special_tokens = True
    texts = composed(400)
    assert len(texts) == 544
    changed, unknown_texts = [], 0
    for text in texts:
        ids = encode(data, text).tolist()
        assert ids == [one + 1 for one in tokenizer.encode(text).ids], text
        assert built.encode(text).ids == [0, *ids], text
        theirs = tokenizer.decode([one - 1 for one in ids])
        assert decode(data, ids) == theirs == built.decode([0, *ids]), text
        changed += [text] * (theirs != text)
        unknown_texts += bool(unknown(data, text))
    # T5 changes text by NFKC and unknown characters; a literal U+2581 stands for a space there.
    if kind != "t5":
        assert not changed if kind == "gpt2" else all("\u2581" in text for text in changed)
    _, counts, lengths = load_hub(f"hf:{tmp_path}").encode_documents([t.encode() for t in texts])
    for text, found in zip(texts, np.split(counts, np.cumsum(lengths)[:-1]), strict=True):
        assert found.sum() == (len(text.encode()) if found.size else 0), text
    assert (unknown_texts > 0) == (kind == "t5") and len(changed) < 544


def test_a_gpt2_with_its_tokenizer(hub, tmp_path, capsys):
    """An imported GPT-2 generates, is scored on blocks, is exported, and is trained further.

    The further training replaces its position table by FIRE-G, as the documented recipe does.
    """
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

    workdir = tmp_path / "runs/gpt2_fire_g"
    asked = recipe("fire_g", run, workdir, DATA_DIR=blocks, VOCABULARY=f"hf:{source}")
    assert cli.main(asked) == cli.main(["sweep", str(workdir)]) == 0
    losses = {row.length: row.nll for row in fire_lm.open_run(workdir).rows().losses}
    assert losses.keys() == {32, 256} and all(0 < nll < 30 for nll in losses.values())


def test_blocks_and_scoring(hub, tmp_path, capsys):
    """Blocks and on-the-fly reading give the same text and bytes; training needs blocks."""
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
