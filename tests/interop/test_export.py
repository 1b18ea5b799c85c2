"""`fire-lm export`: the content of the folder; test_transformers.py loads it."""

import dataclasses
import json
import sys

import numpy as np
import pytest
from gin_files import NAMES, by_tier
from gin_files import TEXTS as FILES
from safetensors.numpy import load_file
from sample_decoders import configured, filled
from sample_run import command, write_text
from sample_vocabulary import MODEL
from sentencepiece import SentencePieceTrainer

from fire_lm.cli import main
from fire_lm.data import TextData
from fire_lm.data.tokens import decode, encode
from fire_lm.errors import UserError
from fire_lm.interop.custom import custom
from fire_lm.interop.export import export
from fire_lm.interop.stock import _ntk, rotary_factor, stock
from fire_lm.interop.tokenizer import tokenizer_files
from fire_lm.models import Mixer
from fire_lm.positions.nope import NoPE
from fire_lm.positions.rope import RoPE
from fire_lm.positions.rope_scaling import NTKAware

DATA = TextData("nowhere", vocabulary="bytes")
CONTEXT = 40
GPT2 = {"learned", "nope", "sinusoidal"}
# Scalings whose factor depends on the input have a stock class once the factor is bound.
NEOX = {"rope", "rope_base_500k", "rope_interleaved", "rope_llama3", "rope_partial"}
FIXED = {
    "rope_pi": "PositionInterpolation.factor = 4.0",
    "rope_ntk": "NTKAware.factor = 4.0",
    "rope_yarn": "YaRN.factor = 4.0",
}
# What the exported code lacks, as its refusal names it.
NOT_EXPORTED = {
    **{name: "Together" for name in NAMES if "Together" in FILES[name]},
    **{"fox": "FoX", "pope": "PoPE", "bam": "BAM", "irope": "Temperature"},
    **{"fire_sink": r"Attention \(sink\)", "fire_ssmax": "SSMax", "rope_ssmax": "SSMax"},
}
# An encoder of the same model, trained on masked text.
ENCODER = ("data/masked", "encoder")
EXPORTABLE = [name for name in NAMES if name not in NOT_EXPORTED]


def exported(folder, *case, context=CONTEXT):
    model = configured(*case)
    params = filled(model)
    found = export(model, params, DATA, folder, f"# {case[0]}", context)
    return model, params, found


def test_a_folder_of_a_custom_model(tmp_path):
    model, params, found = exported(tmp_path / "fire", "fire")
    config = json.loads((tmp_path / "fire/config.json").read_text())
    assert config["vocab_size"] == 32 and config["eos_token_id"] == 1
    assert config["positions"][0]["type"] == "fire" and config["positions"][0]["L"] == 4.0
    assert config["positions"][0]["last_position"] is None
    for name in ("configuration_fire_lm.py", "modeling_fire_lm.py"):
        assert config["auto_map"] and (tmp_path / "fire" / name).read_text()
    arrays = load_file(tmp_path / "fire/model.safetensors")
    assert arrays.keys() == found.arrays.keys()
    layers = params["layers"]
    np.testing.assert_array_equal(
        arrays["model.layers.2.query.weight"], layers["query"]["kernel"][2].reshape(48, 48).T
    )
    # L = |m * init_L| of the last layer; it remains a scalar.
    L = arrays["model.layers.3.position.L"]
    np.testing.assert_allclose(L, layers["position"]["L_multiplier"][3] * 4.0)
    assert L.shape == () and arrays["model.embedding.weight"].shape == (32, 48)
    assert "trust_remote_code=True" in (tmp_path / "fire/README.md").read_text()
    assert model.size.num_layers == config["num_hidden_layers"]


def test_a_folder_of_a_stock_model(tmp_path):
    _, params, found = exported(tmp_path / "rope", "rope")
    config = json.loads((tmp_path / "rope/config.json").read_text())
    assert config["architectures"] == ["GPTNeoXForCausalLM"] and "auto_map" not in config
    assert not list((tmp_path / "rope").glob("*.py"))
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "rope").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}, "the umask applies to every file"
    assert config["rope_parameters"]["rope_theta"] == config["rotary_emb_base"] == 10_000
    assert config["rope_parameters"]["partial_rotary_factor"] == config["rotary_pct"] == 1
    qkv = found.arrays["gpt_neox.layers.1.attention.query_key_value.weight"]
    key = params["layers"]["key"]["kernel"][1]  # of the second head, stored after its query
    np.testing.assert_array_equal(qkv[3 * 8 + 8 : 3 * 8 + 16], key[:, 1].T)


def test_a_folder_of_an_encoder(tmp_path):
    """It is a masked language model, whose tokenizer has the mask token, and does not generate."""
    model = configured("t5", *ENCODER)
    found = export(model, filled(model), DATA, tmp_path / "t5", "# t5", CONTEXT, mask_id=259)
    config = json.loads((tmp_path / "t5/config.json").read_text())
    assert config["architectures"] == ["FireLMForMaskedLM"] and config["causal"] is False
    assert "AutoModelForMaskedLM" in config["auto_map"]
    starts = config["positions"][0]["starts"]
    assert len(starts) == 31 and config["positions"][0]["later"], "half of 64 buckets"
    assert found.arrays["model.positions.0.table"].shape == (64, 6)
    assert not (tmp_path / "t5/generation_config.json").exists()
    tokenizer, settings = tokenizer_files(DATA, mask_id=259).values()
    assert tokenizer["added_tokens"][-1]["id"] == 259 and settings["mask_token"] == "<mask>"
    assert tokenizer["post_processor"] is None and "bos_token" not in settings
    assert "bos_token_id" not in config, "an encoder reads rows of text, to which nothing is added"
    with pytest.raises(UserError, match="mask token of this run is 300, .* it would be 259"):
        tokenizer_files(DATA, mask_id=300)
    assert "mask_token_id" in (tmp_path / "t5/README.md").read_text()


@pytest.mark.parametrize(
    "case, told",
    [
        (("sinusoidal", "resampling/even"), "configs/resampling/plain.gin"),
        (("learned",), "beyond the 64 positions"),
    ],
)
def test_what_cannot_be_exported(case, told, tmp_path):
    with pytest.raises(UserError, match=told):
        exported(tmp_path / "model", *case, context=100)
    assert not (tmp_path / "model").exists()


def test_an_encoding_of_the_user_cannot_be_exported(tmp_path):
    """A subclass computes something else, so it must not pass for the class that it extends."""

    class Mine(NoPE):
        pass

    model = configured("nope")
    own = Mine(**vars(model.encodings[0]))
    with pytest.raises(UserError, match="Mine cannot be exported: .*ALiBi, FIRE, KERPLELog"):
        export(
            *(model.with_encodings((own,)), filled(model)),
            *(DATA, tmp_path / "model", "# mine", CONTEXT),
        )
    assert not (tmp_path / "model").exists()


def test_another_mixer_cannot_be_exported(tmp_path):
    class Still(Mixer):
        pass

    model = configured("nope")
    turns = tuple(dataclasses.replace(turn, mixer=Still()) for turn in model.turns)
    with pytest.raises(UserError, match="layers with Still cannot be exported: .* only Attention"):
        export(model.clone(turns=turns), filled(model), DATA, tmp_path / "model", "", CONTEXT)
    assert not (tmp_path / "model").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is not an empty folder"):
        exported(tmp_path, "fire")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failed_export_leaves_nothing_in_the_way(tmp_path, monkeypatch):
    """Neither a full disk at first nor a missing safetensors module then leaves files behind."""

    def full(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("safetensors.numpy.save_file", full)
        with pytest.raises(OSError, match="no space left"):
            exported(tmp_path / "model", "fire")
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "safetensors.numpy", None)
        with pytest.raises(UserError, match="safetensors is not installed"):
            exported(tmp_path / "model", "fire")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".model.unfinished").mkdir()  # left by a kill
    (tmp_path / "model").mkdir()
    exported(tmp_path / "model", "fire")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", sorted(NOT_EXPORTED))
def test_what_the_exported_code_lacks_is_refused_with_the_reason(name, tmp_path):
    model = configured(name)
    with pytest.raises(UserError, match=f"{NOT_EXPORTED[name]}.* cannot be exported: "):
        export(model, {}, DATA, tmp_path / "model", "", CONTEXT)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", [case for case in by_tier(()) if case.values[0] in EXPORTABLE])
def test_stock_classes_are_taken_where_they_are_exact(name):
    model = configured(name, *([FIXED[name]] if name in FIXED else []))
    params = filled(model)
    found = stock(model, params, CONTEXT)
    expected = "gpt2" if name in GPT2 else "gpt_neox" if name in NEOX | set(FIXED) else None
    assert (found and found.config["model_type"]) == expected
    assert custom(model, params, CONTEXT).arrays  # every encoding has a custom form


def test_transformers_rotates_as_many_dims():
    """It rounds the product of the factor and the dims of a head down."""
    for fraction, head_dim in ((0.58, 100), (1 / 3, 48), (0.33333333, 96), (0.25, 64), (1.0, 8)):
        rope = RoPE(2, head_dim, 16, 2 * head_dim, rotary_fraction=fraction)
        factor = rotary_factor(rope)
        assert int(head_dim * factor) == rope.rotary_width == round(factor * head_dim)
        assert factor == fraction or fraction not in (0.25, 1.0)


def test_ntk_of_a_single_pair_of_dims_is_exported():
    rope = RoPE(2, 8, 16, 16, rotary_fraction=0.25, scaling=NTKAware(4.0))
    config = _ntk(rope.scaling, rope)
    assert config["rope_theta"] > 0 and rope.frequencies(64)[0].tolist() == [1.0]


def test_bytes_as_a_tokenizer():
    """The id of byte b, in GPT-2's spelling, is b + 3."""
    vocab = tokenizer_files(DATA)["tokenizer.json"]["model"]["vocab"]
    assert vocab["A"] == ord("A") + 3 and vocab["\u0120"] == ord(" ") + 3
    assert sorted(vocab.values()) == list(range(259))


TEXTS = ("def main(", "the cat  sat", " so they", "caf\u00e9 \u706b", "\\frac{1}{2}\n\tx", "a")
FRAGMENTS = (
    *TEXTS,
    "The", "theory", "of", "relative", "positions", "x_1", "3.14159", "2026-11-24", "don't",
    "A/B", "\\begin{align}", "$\\sum_{i=0}^{n-1}\\alpha_i$", "\\cite{a,b}", "% comment", "&=",
    "{\\bf x}", "def f(x):", "    return x", "\treturn", "if a != b:", "</div>", "/* c */",
    "0xFF", "#!/bin/sh", "na\u00efve", "nai\u0308ve", "\u00df", "\u0130", "\ufb01n", "\u2460",
    "\uff21\uff22", "\u00bd", "\u2126", "\u706b\u661f", "\u3053\u3093", "\u30ab\uff9e",
    "\ud55c\uae00", "\u1112\u1161\u11ab", "\u0635\u0644", "\u05e9\u05c1",
    "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e44\u0e17\u0e22", "\U0001f600",
    "\U0001f468\u200d\U0001f469", "\U0001d54f", "\u2581", "a\u2581b", "\u200b", "\u00ad",
    "\ufeff", "\u00a0", "\u3000", "\u2028", "\u0301", "\ufffd", "\u2026", "<pad>", "</s>",
    "<unk>", "<s>", "<0x41>", "<|endoftext|>", "[MASK]", "<extra_id_0>", "<pa", "d>",
)  # fmt: skip
# Text that tokenizers' NFKC keeps but sentencepiece's NFKC changes.
DECOMPOSED = ("\u30ab\uff9e", "\u1112\u1161\u11ab", "\u00a0\u0301")
SPACES = ("", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", " \n ")


def composed(number: int) -> list[str]:
    """Return all fragments, and `number` texts of up to 12 fragments with various spaces."""
    random = np.random.default_rng(0)

    def one() -> str:
        parts = [SPACES[random.integers(len(SPACES))]]
        for _ in range(random.integers(1, 13)):
            parts.append(FRAGMENTS[random.integers(len(FRAGMENTS))])
            parts.append(SPACES[random.integers(len(SPACES))])
        return "".join(parts)

    return [
        *FRAGMENTS,
        *(f" {each}  {each}" for each in FRAGMENTS),
        *(one() for _ in range(number)),
    ]


@pytest.fixture(scope="module")
def merges(tmp_path_factory):
    """Train a BPE vocabulary that, like Mistral's, encodes unknown text as bytes."""
    prefix = tmp_path_factory.mktemp("vocabulary") / "bpe"
    lines = [f"def main(self, {word}): return the {word} that sat" for word in TEXTS[:3]] * 30
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(prefix),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return f"{prefix}.model"


@pytest.fixture(scope="module")
def lossless(tmp_path_factory):
    """Make a vocabulary with `fire-lm corpus vocab`."""
    folder = tmp_path_factory.mktemp("lossless")
    write_text(folder / "text")
    output = str(folder / "vocabulary.model")
    arguments = [f"--data_dir={folder / 'text'}", f"--output={output}", "--size=290"]
    assert main(["corpus", "vocab", *arguments]) == 0
    return output


@pytest.mark.interop("tokenizers")
@pytest.mark.parametrize("kind", ["bytes", "unigram", "bpe", "lossless"])
def test_tokenizers_agree(kind, request):
    import tokenizers

    known = {"bytes": "bytes", "unigram": MODEL}
    vocabulary = known.get(kind) or request.getfixturevalue({"bpe": "merges"}.get(kind, kind))
    data = TextData("nowhere", vocabulary=vocabulary)
    built = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_files(data)["tokenizer.json"]))
    built.encode_special_tokens = True  # as "split_special_tokens" does in transformers
    normalised = kind in ("unigram", "bpe")  # by NFKC, unlike the others
    texts = composed(400)
    alike = [text for text in texts if not (normalised and any(one in text for one in DECOMPOSED))]
    assert len(alike) > 300
    for text in texts:
        ids = encode(data, text)
        if text in alike:
            assert built.encode(text).ids == [0, *ids], text
        if kind != "unigram":  # unigram decodes unknown text differently
            assert built.decode([int(one) for one in ids]) == decode(data, ids)


def test_pieces_that_are_merged(merges):
    """Every merged piece joins two pieces that are characters or were merged earlier."""
    model = tokenizer_files(TextData("nowhere", vocabulary=merges))["tokenizer.json"]["model"]
    made = ["".join(pair) for pair in model["merges"]]
    assert model["byte_fallback"] and len(made) > 20
    for piece in set(made):
        pairs = [pair for pair in model["merges"] if "".join(pair) == piece]
        before = set(made[: made.index(piece)]) | {one for one in model["vocab"] if len(one) == 1}
        assert any(before.issuperset(pair) for pair in pairs), piece


@pytest.mark.ci
def test_the_command(tmp_path, capsys):
    run = tmp_path / "runs/fire"
    assert main(command(write_text(tmp_path / "text"), run, position="fire")) == 0
    assert main(["export", f"{run}@10", f"--output={tmp_path / 'hf'}"]) == 0
    assert "FireLMForCausalLM from step 10; load it with trust_remote_code=True" in (
        capsys.readouterr().out
    )
    assert "# fire, step 10" in (tmp_path / "hf/README.md").read_text()
    assert main(["export", str(run), f"--output={tmp_path / 'hf'}"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(["export", str(run), "--output=gs://bucket/hf"]) == 2
    assert "must be a local folder" in capsys.readouterr().err
