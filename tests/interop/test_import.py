"""`fire-lm import`: GPT-2 against transformers, our own exports, and runs at step 0."""

import json
from pathlib import Path
from typing import Any

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gin_files import CLASSES
from safetensors.numpy import load_file, save_file
from sample_decoders import configured, filled
from sample_run import command, write_text
from test_export import CONTEXT, DATA, EXPORTABLE, FIXED

import fire_lm
from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.interop.export import export
from fire_lm.interop.gpt2 import read_gpt2
from fire_lm.interop.import_run import Gin, check_shapes, read_folder
from fire_lm.interop.own_exports import check_config, read_own
from fire_lm.interop.weights import Weights, read_config
from fire_lm.models import Decoder, build_decoder, parameter_shapes
from fire_lm.positions.learned import Learned

GOLDEN = "transformers_gpt2.json"  # written by test_transformers.py
CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 29,
    "n_positions": 12,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": None,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "bos_token_id": 28,
    "eos_token_id": 28,
}
IDS = np.random.default_rng(2).integers(0, 29, (2, 12))
IDS[0, 3] = 0  # "!", which is not padding


def gpt2_folder(folder: Path, prefix: str = "transformer.", **changed: Any) -> Path:
    """Write a GPT-2 with random weights, chosen so that every bias and norm matters."""
    config = CONFIG | changed
    width, draw = config["n_embd"], np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], width),
        "wpe.weight": (12, width),
    }
    for index in range(2):
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes[f"h.{index}.{name}.weight"] = (inputs, outputs)
            shapes[f"h.{index}.{name}.bias"] = (outputs,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{index}.{name}.{part}": (width,) for part in ("weight", "bias")}
    shapes |= {f"ln_f.{part}": (width,) for part in ("weight", "bias")}
    arrays = {
        f"{prefix}{name}": draw.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    if not prefix:  # as in the first folders of GPT-2
        arrays |= {f"h.{index}.attn.bias": np.ones((1, 1, 12, 12), np.float32) for index in (0, 1)}
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def logits_of(model: Decoder, params: Any, tokens: np.ndarray) -> np.ndarray:
    pos_BT, params = jnp.arange(tokens.shape[1])[None], jax.tree.map(jnp.asarray, params)
    apply = jax.jit(model.apply)
    return np.asarray(apply({"params": params}, jnp.asarray(tokens, jnp.int32), pos_BT))


def our_logits(folder: Path, ids: np.ndarray = IDS) -> np.ndarray:
    """Return our logits for GPT-2's ids, in GPT-2's order of ids."""
    found = read_gpt2(folder)

    def learned(**shape: int) -> Learned:
        return Learned(**shape, max_length=found.positions)

    model = build_decoder(
        *(found.size, learned, found.vocab_size),
        train_length=found.positions,
        dtype="float32",
        share_position=True,
    )
    check_shapes(parameter_shapes(model), found.params, folder)
    return logits_of(model, found.params, ids + 1)[..., 1:]


def test_gpt2_computes_what_transformers_does(tmp_path):
    expected = golden_numbers.of(GOLDEN)
    for prefix in ("transformer.", ""):
        found = our_logits(gpt2_folder(tmp_path / f"folder{len(prefix)}", prefix))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    params = read_gpt2(tmp_path / "folder0").params  # token 0 begins a document
    np.testing.assert_array_equal(params["embedding"][0], params["embedding"][29])


@pytest.mark.parametrize(
    "field, value",
    [
        ("model_type", "gpt_neo"),
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("reorder_and_upcast_attn", True),
        ("add_cross_attention", True),
        ("tie_word_embeddings", False),
        ("n_embd", 25),
        ("n_layer", "two"),
        ("eos_token_id", 29),
    ],
)
def test_a_field_that_we_do_not_compute_is_named(field, value, tmp_path, capsys):
    folder = gpt2_folder(tmp_path / "gpt2")
    (folder / "config.json").write_text(json.dumps(CONFIG | {field: value}))
    assert main(["import", f"--from={folder}", f"--output={tmp_path / 'run'}"]) == 2
    assert f"{field} " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda arrays: arrays.pop("transformer.h.1.ln_2.bias"), "1.ln_2.bias is missing from"),
        (
            lambda arrays: arrays.update({"transformer.wpe.weight": np.zeros((11, 24))}),
            r"transformer.wpe.weight has the shape \[11, 24\]",
        ),
        (
            lambda arrays: arrays.update({"score.weight": np.zeros(3)}),
            "score.weight does not belong",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change, told, tmp_path):
    folder = gpt2_folder(tmp_path / "gpt2")
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors")
    with pytest.raises(UserError, match=told):
        read_gpt2(folder)


def change_arrays(folder: Path, *removed: str, **changed: Any) -> None:
    arrays = load_file(folder / "model.safetensors")
    arrays |= {name.replace("__", "."): array for name, array in changed.items()}
    save_file({n: arrays[n] for n in arrays if n not in removed}, folder / "model.safetensors")


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_a_tied_output_matrix_may_be_stored_twice_or_alone(prefix, tmp_path):
    folder, expected = gpt2_folder(tmp_path / "gpt2", prefix), golden_numbers.of(GOLDEN)
    name = f"{prefix}wte.weight"
    embedding_VD = load_file(folder / "model.safetensors")[name]
    change_arrays(folder, lm_head__weight=embedding_VD)
    np.testing.assert_allclose(our_logits(folder), expected, atol=1e-5)
    change_arrays(folder, lm_head__weight=embedding_VD + (embedding_VD > 0.5))
    with pytest.raises(UserError, match=f"{name} and lm_head.weight differ, .* tied"):
        read_gpt2(folder)
    change_arrays(folder, name, lm_head__weight=embedding_VD)
    np.testing.assert_allclose(our_logits(folder), expected, atol=1e-5)
    change_arrays(folder, "lm_head.weight")
    with pytest.raises(UserError, match=f"the tensor {name} is missing"):
        read_gpt2(folder)


@pytest.mark.parametrize(
    "encoding, name, output",
    [
        ("nope", "transformer.wte.weight", "lm_head.weight"),
        ("rope", "gpt_neox.embed_in.weight", "embed_out.weight"),
        ("kerple_log", "model.embedding.weight", "lm_head.weight"),
    ],
)
def test_the_output_matrix_of_an_export_may_be_stored_too(encoding, name, output, tmp_path):
    model, folder = configured(encoding), tmp_path / "model"
    export(model, filled(model), DATA, folder, "#", CONTEXT)
    embedding_VD = load_file(folder / "model.safetensors")[name]
    for removed in ((), (name,)):
        change_arrays(folder, *removed, **{output: embedding_VD})
        found = read_own(model, read_config(folder), Weights(folder))
        np.testing.assert_array_equal(found["embedding"], embedding_VD)
    change_arrays(folder, **{name: embedding_VD + 1})
    with pytest.raises(UserError, match=f"{name} and {output} differ"):
        read_own(model, read_config(folder), Weights(folder))


def test_an_export_with_rope_is_no_model_with_another_encoding(tmp_path):
    model = configured("rope")
    export(model, filled(model), DATA, tmp_path / "model", "#", CONTEXT)
    weights = Weights(tmp_path / "model")
    with pytest.raises(UserError, match="exported with RoPE, but the configuration has NoPE"):
        read_own(configured("nope"), read_config(tmp_path / "model"), weights)


def test_folders_of_something_else(tmp_path):
    with pytest.raises(UserError, match=r"has no config.json"):
        read_folder(tmp_path, Gin())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"is not valid JSON"):
        read_folder(tmp_path, Gin())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(UserError, match=r"has no model.safetensors"):
        read_folder(tmp_path, Gin())
    (tmp_path / "model.safetensors").write_text("damaged")
    with pytest.raises(UserError, match=r"is not a safetensors file"):
        read_folder(tmp_path, Gin())


CASES = [
    *((name, *([FIXED[name]] if name in FIXED else [])) for name in EXPORTABLE),
    ("fire", "build_decoder.share_position = True"),
    ("fire", "FIRE.init_L = 3.7"),
    ("learned", "Learned.interpolation = 4.0"),
    ("learned", "Learned.interpolation = 4.0", "log_n/training"),
]
ONE_OF_A_CLASS = [
    pytest.param(
        case,
        marks=pytest.mark.ci if case[0] in CLASSES else pytest.mark.slow,
        id=" ".join(case),
    )
    for case in CASES
]


@pytest.mark.parametrize("case", ONE_OF_A_CLASS)
def test_an_export_comes_back(case, tmp_path):
    """All parameters return bit for bit, except FIRE's multiplier of L, if L itself returns."""
    model = configured(*case)
    params = filled(model)
    export(model, params, DATA, tmp_path / "model", "#", CONTEXT)
    found = read_own(model, read_config(tmp_path / "model"), Weights(tmp_path / "model"))
    check_shapes(parameter_shapes(model), found, tmp_path)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        back = leaf_at(found, path)
        if name.endswith("L_multiplier"):
            init_L = model.encodings[0].init_L
            np.testing.assert_array_equal(back * np.float32(init_L), leaf * np.float32(init_L))
            continue
        np.testing.assert_array_equal(back, leaf, err_msg=name)


def leaf_at(tree: Any, path: Any) -> Any:
    for step in path:
        tree = tree[step.key]
    return tree


@pytest.mark.parametrize(
    "case, name",
    [
        (("nope",), "transformer.wpe.weight"),
        (("learned", "Learned.interpolation = 4.0"), "transformer.wpe.weight"),
        (
            ("learned", "Learned.interpolation = 4.0", "log_n/training"),
            "model.positions.0.embedding",
        ),
    ],
)
def test_an_export_that_was_trained_elsewhere(case, name, tmp_path):
    """Rows of a position table that are not parameters of the run are refused if they changed."""
    model = configured(*case)
    export(model, filled(model), DATA, tmp_path / "model", "#", CONTEXT)
    file = tmp_path / "model/model.safetensors"
    arrays = load_file(file)
    arrays[name][3] += 0.1
    save_file(arrays, file)
    with pytest.raises(UserError, match=f"{name} has changed since the export"):
        read_own(model, read_config(tmp_path / "model"), Weights(tmp_path / "model"))


@pytest.mark.parametrize(
    "case, field, value",
    [
        (("rope",), "rope_parameters", {"rope_type": "linear", "factor": 4.0}),
        (("rope",), "use_parallel_residual", True),
        (("nope",), "activation_function", "relu"),
        (("fire",), "windows", [4]),
        (("fire",), "log_n", [{"on": "qk", "clipped": False}]),
        (("t5",), "positions", [{"type": "buckets", "starts": [0, 1]}]),
    ],
    ids=lambda case: case if isinstance(case, str) else None,
)
def test_an_export_whose_function_was_changed_elsewhere(case, field, value, tmp_path):
    model = configured(*case)
    export(model, filled(model), DATA, tmp_path / "model", "#", CONTEXT)
    config = read_config(tmp_path / "model")
    resaved = {"causal": True, "windows": None, "chunks": None} | config  # as transformers does
    resaved.get("rope_parameters", {})["added by transformers"] = 1
    check_config(model, resaved, Weights(tmp_path / "model"))
    with pytest.raises(UserError, match=f"config.json: {field} has changed since the export, from"):
        check_config(model, config | {field: value}, Weights(tmp_path / "model"))


@pytest.mark.ci
def test_a_run_there_and_back(tmp_path, capsys):
    """An exported and reimported run has the same arrays, is scored, generates and can train on."""
    text, run, back = write_text(tmp_path / "text"), tmp_path / "runs/fire", tmp_path / "runs/back"
    assert main(command(text, run)) == 0
    assert main(["export", str(run), f"--output={tmp_path / 'hf'}"]) == 0
    assert main(["import", f"--from={tmp_path / 'hf'}", f"--output={back}"]) == 0
    before, after = (fire_lm.open_run(one) for one in (run, back))
    assert after.steps == [0] and after.encoding == "fire"
    jax.tree.map(np.testing.assert_array_equal, before.restore()[1], after.restore()[1])
    capsys.readouterr()
    asked = ["--prompt=so they", "--new_tokens=5"]
    assert main(["generate", str(run), *asked]) == main(["generate", f"{back}@0", *asked]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == second
    lengths = ["--gin.EVAL_LENGTHS=32", "--gin.length_sweep.tokens=2048"]
    assert main(["sweep", str(run), *lengths]) == main(["sweep", str(back), *lengths]) == 0
    losses = [{row.nll for row in one.rows().losses} for one in (before, after)]
    assert losses[0] == losses[1] and len(losses[0]) == 1
    capsys.readouterr()
    assert main(command(text, back)) == 2
    assert f"--gin.INIT_FROM={back}" in capsys.readouterr().err
    more = command(text, tmp_path / "more", f"--gin.INIT_FROM={back}", "--gin.TRAIN_STEPS=3")
    assert main(more) == 0
    assert main(["import", f"--from={tmp_path / 'hf'}", f"--output={back}"]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(["export", str(back), f"--output={tmp_path / 'again'}"]) == 0
    cards = [(tmp_path / name / "README.md").read_text() for name in ("hf", "again")]
    assert ["trained by fire_lm at length" in card for card in cards] == [True, False]


def recipe(position: str, run: Path, workdir: Path, **more: Any) -> list[str]:
    """Return the documented command for `run`, an imported GPT-2, reduced to two steps."""
    model, _ = fire_lm.open_run(str(run)).restore()
    bindings = {
        "INIT_FROM": run,
        "TRAIN_STEPS": 2,
        "AdamW.warmup_steps": 1,
        "BATCH_SIZE": 8,
        "TRAIN_LENGTH": 32,
        "VOCAB_SIZE": model.vocab_size,
        "length_sweep.tokens": 8192,
        "EVAL_LENGTHS": "(32,256)",  # up to 8 times the training length
        **more,
    }
    for name in ("num_layers", "hidden_size", "num_heads", "head_dim", "mlp_size"):
        bindings[f"size_125m.{name}"] = getattr(model.size, name)
    return [
        "pretrain",
        "--gin_file=configs/runs/gpt2_new_positions.gin",
        f"--gin_file=configs/positions/{position}.gin",
        f"--workdir={workdir}",
        *(f"--gin.{name}={one}" for name, one in bindings.items()),
    ]


@pytest.mark.ci
def test_gpt2_with_fire_for_its_table(tmp_path, capsys):
    """The documented recipe works on a small GPT-2 and text in bytes.

    test_hub_vocabulary.py uses GPT-2's kind of vocabulary.
    """
    run, workdir = tmp_path / "runs/gpt2", tmp_path / "runs/gpt2_fire"
    folder = gpt2_folder(tmp_path / "gpt2", vocab_size=300, eos_token_id=299)
    assert main(["import", f"--from={folder}", f"--output={run}"]) == 0
    assert "learned at step 0" in (told := capsys.readouterr().out) and "dropout of 0.1" in told
    opened = fire_lm.open_run(str(run))
    _, params = opened.restore()
    assert opened.settings.train_length == 12
    table = load_file(folder / "model.safetensors")["transformer.wpe.weight"]
    np.testing.assert_array_equal(params["position"]["embedding"], table)
    bytes_of_text: dict[str, Any] = {
        "pretrain.data": "@TextData()",
        "length_sweep.data": "@TextData()",
        "TextData.shuffle_buffer": 50,
        "DATA_DIR": write_text(tmp_path / "text"),
        "VOCABULARY": "bytes",
    }
    assert main(recipe("fire", run, workdir, **bytes_of_text)) == 0
    told = capsys.readouterr().out
    assert "newly initialised" in told and "layers/position/mlp/dense_0/kernel" in told
    trained = fire_lm.open_run(workdir)
    assert trained.encoding == "fire" and trained.steps == [2]
    change = np.abs(trained.restore()[1]["embedding"] - params["embedding"]).max()
    assert 0 < change < 1e-2
    assert main(["sweep", str(workdir)]) == 0
    losses = {row.length: row.nll for row in trained.rows().losses}
    assert losses.keys() == {32, 256} and all(0 < nll < 30 for nll in losses.values())
