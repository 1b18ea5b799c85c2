"""A kind of data from the user's own package: the example of docs/data.md."""

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_run import logged, saved_state

from fire_lm.cli import main
from fire_lm.data import train_iterator
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
(MODULE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(GIN,) = re.findall(r"```\n(import my_package.*?)```", PAGE, re.DOTALL)
FILES = ["configs/runs/quickstart.gin", "configs/positions/nope.gin"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Yield a folder with the user's package, a gin file for it, and a file of tokens."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "token_file.py").write_text(MODULE)
    lacking = "    def vocabulary_size(self) -> int:\n        return self.size\n"
    (package / "unfinished.py").write_text(MODULE.replace(lacking, ""))
    np.save(tmp_path / "tokens.npy", np.arange(1, 200))
    (tmp_path / "own.gin").write_text(
        GIN.replace("tokens.npy", str(tmp_path / "tokens.npy")).replace("32000", "200")
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def data_of(folder, *bindings):
    return load_experiment([*FILES, str(folder / "own.gin")], bindings).train.data


def test_one_module_and_one_gin_file(own):
    data = data_of(own)
    assert (data.title, data.in_words, data.vocabulary_name()) == ("TokenFile",) * 3
    assert (data.packed, data.unshifted, data.row_lengths(8)) == (False, False, (8,))
    whole = train_iterator(data, length=8, batch_size=4, seed=1)
    first, state, second = next(whole), whole.get_state(), next(whole)
    assert (np.diff(first["targets"]) == 1).all() and first["weights"].all()
    for index in range(2):  # another number of processes
        shard = train_iterator(
            data, length=8, batch_size=2, seed=1, shard_index=index, shard_count=2
        )
        shard.set_state(state)
        np.testing.assert_array_equal(
            next(shard)["targets"], second["targets"][2 * index : 2 * index + 2]
        )
    with pytest.raises(UserError, match="saved with seed 1, but the run now has 2"):
        train_iterator(data, length=8, batch_size=4, seed=2).set_state(state)


@pytest.mark.parametrize(
    "bindings, module, words",
    [
        (["pretrain.data=@AdamW()"], "token_file", "expects TrainingSource, got @AdamW()"),
        (["length_sweep.data=@TokenFile()"], "token_file", "expects TextSource, got @TokenFile()"),
        ([], "unfinished", "unfinished.TokenFile lacks vocabulary_size"),
    ],
)
def test_a_wrong_one_is_told(own, bindings, module, words):
    with pytest.raises(UserError) as told:
        load_experiment(FILES, bindings, imports=[f"my_package.{module}"])
    assert words in str(told.value) and len(str(told.value).splitlines()) == 1


@pytest.mark.ci
def test_a_run_resumes_to_the_same_bits_and_a_sweep_says_what_is_missing(own, capsys):
    bindings = [
        "TRAIN_STEPS=4", "BATCH_SIZE=4", "TRAIN_LENGTH=16", "VOCAB_SIZE=200", "DATA_DIR=nowhere",
        "AdamW.warmup_steps=1", "Checkpointing.save_every=2", "pretrain.log_every=1",
        "size_tiny.num_layers=1", "size_tiny.hidden_size=16", "size_tiny.mlp_size=16",
        "size_tiny.num_heads=1", "size_tiny.head_dim=16",
    ]  # fmt: skip
    arguments = [*(f"--gin_file={file}" for file in FILES), f"--gin_file={own / 'own.gin'}"]
    arguments += [f"--gin.{one}" for one in bindings]
    run = own / "run"
    command = ["pretrain", *arguments, f"--workdir={run}"]
    assert main(command) == 0
    whole, lines = saved_state(run, 4), logged(run)
    shutil.rmtree(run / "checkpoints" / "4")  # as if the process had been killed after step 2
    assert main(command) == 0
    assert logged(run) == lines
    for name, value in saved_state(run, 4).items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    capsys.readouterr()
    assert main(["sweep", str(run)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.endswith("was trained on TokenFile, which has no text to score") and (
        "\n" not in told
    )
    assert main(["report", str(run), f"--output={own / 'report'}"]) == 0
    assert "TokenFile" in (own / "report" / "runs.csv").read_text()
