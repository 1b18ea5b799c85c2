"""An optimizer from the user's own package: the example of docs/pretraining.md, and wrong ones."""

import re
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from sample_run import logged

from fire_lm.cli import main
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pretraining.md").read_text()
(MODULE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(GIN,) = re.findall(r"```\n(import my_package.*?)```", PAGE, re.DOTALL)
FILES = ["configs/synthetic/reverse_string.gin", "configs/positions/nope.gin"]
WRONG = """
import dataclasses
import optax

@dataclasses.dataclass(frozen=True)
class NoSchedule:
    def build(self, train_steps):
        return optax.sgd(0.1)

@dataclasses.dataclass(frozen=True)
class Constant(NoSchedule):
    def schedule(self, train_steps):
        return 0.1

@dataclasses.dataclass(frozen=True)
class NoSteps:
    def build(self):
        return optax.sgd(0.1)

    def schedule(self, train_steps):
        return optax.constant_schedule(0.1)

@dataclasses.dataclass(frozen=True)
class Nothing(NoSteps):
    def build(self, train_steps):
        pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Yield a folder with the user's package and a gin file for it."""
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "sign_descent.py").write_text(MODULE)
    (package / "wrong.py").write_text(WRONG)
    (tmp_path / "own.gin").write_text(GIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def test_one_module_and_one_gin_file(own):
    run = load_experiment([*FILES, str(own / "own.gin")], ["TRAIN_STEPS=100"]).train
    assert [float(run.schedule()(n)) for n in (0, 50, 100)] == pytest.approx([3e-4, 1.5e-4, 0])
    params = {"mlp_in": {"kernel": jnp.ones((1, 2, 3)), "bias": jnp.ones((1, 3))}}
    optimizer = run.transformation()
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    np.testing.assert_allclose(updates["mlp_in"]["kernel"], -3e-4 * 1.1, rtol=1e-6)
    np.testing.assert_allclose(updates["mlp_in"]["bias"], -3e-4, rtol=1e-6)


def test_it_may_be_an_item_of_a_list(own):
    chain = ["pretrain.optimizer=(@optax.clip_by_global_norm(), @SignDescent())"]
    given = [*chain, "optax.clip_by_global_norm.max_norm=1", "SignDescent.learning_rate=0.5"]
    run = load_experiment([*FILES, str(own / "own.gin")], given).train
    assert float(run.schedule()(0)) == 0.5


@pytest.mark.parametrize(
    "value, words",
    [
        ("@Spikes()", "pretrain.optimizer expects Optimizer (with build, schedule) or a list of "
         "Optimizer (with build, schedule) like [a, b], got @Spikes()"),
        ("@NoSchedule()", "got @NoSchedule()"),
        ("@SignDescent", "Did you mean @SignDescent()?"),
        ("@Constant()", "no learning rate: 'float' object is not callable"),
        ("@NoSteps()", "cannot make an update: NoSteps.build() takes 1 positional argument"),
        ("@Nothing()", "cannot make an update: 'NoneType' object has no attribute 'init'"),
    ],
)  # fmt: skip
def test_a_wrong_one_is_told(own, value, words):
    bindings, modules = [f"pretrain.optimizer={value}"], ["my_package.wrong"]
    with pytest.raises(UserError) as told:
        wrong = load_experiment([*FILES, str(own / "own.gin")], bindings, imports=modules)
        wrong.train.check_optimizer()
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2


@pytest.mark.ci
def test_it_trains(own):
    bindings = [
        "TRAIN_STEPS=2", "BATCH_SIZE=4", "TRAIN_LENGTH=16", "Synthetic.max_length=4",
        "pretrain.log_every=1", "size_tiny.num_layers=1", "size_tiny.hidden_size=16",
        "size_tiny.mlp_size=16", "size_tiny.num_heads=1", "size_tiny.head_dim=16",
    ]  # fmt: skip
    arguments = [*(f"--gin_file={file}" for file in FILES), f"--gin_file={own / 'own.gin'}"]
    arguments += [f"--gin.{one}" for one in bindings]
    assert main(["pretrain", *arguments, f"--workdir={own / 'run'}"]) == 0
    assert [line["learning_rate"] for line in logged(own / "run")] == pytest.approx([3e-4, 1.5e-4])
