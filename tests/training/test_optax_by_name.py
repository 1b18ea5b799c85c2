"""Optimizers of optax by their names in gin: their arguments, and how their state is laid out.

A run with one of them resumes to the bit.
"""

import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec
from sample_run import assert_same_arrays, logged, saved_state, tiny_run

from fire_lm import cli
from fire_lm.errors import UserError
from fire_lm.experiment import load_experiment
from fire_lm.sharding import make_mesh, tree_shardings
from fire_lm.training import Pretraining, decay_mask, muon_dimensions
from fire_lm.training.optax_by_name import Optax, optax_configurables
from fire_lm.training.optimizer import Chain
from fire_lm.training.step import init_state, summed_loss, train_step
from fire_lm.training.trial_update import check_optimizer

FILES = ["configs/runs/quickstart.gin", "configs/positions/fire.gin"]
OPTIMIZERS = ("adafactor", "lion", "muon")
MESH = ("MeshShape.data=1", "MeshShape.fsdp=2", "MeshShape.tensor=2")


def loaded(*bindings: str, optimizer: str = "") -> Pretraining:
    files = [*FILES, f"configs/optim/{optimizer}.gin"] if optimizer else FILES
    found = load_experiment(files, ["WARMUP_STEPS=2", *bindings] if optimizer else bindings)
    run = found.train
    assert isinstance(run, Pretraining)
    return run


def test_names_are_optax_s():
    names = optax_configurables()
    assert {"optax.adam", "optax.adafactor", "optax.contrib.muon", "optax.masked"} <= set(names)
    assert {"optax.cosine_decay_schedule", "optax.join_schedules"} <= set(names)
    assert not {"optax.chain", "optax.apply_updates", "optax.l2_loss"} & set(names)


def test_a_list_is_a_chain_and_the_log_has_its_schedule():
    run = loaded("TRAIN_STEPS=10", optimizer="lion")
    theirs = optax.warmup_cosine_decay_schedule(0.0, 1e-4, 2, 10, 0.0)
    for step in range(11):
        assert float(run.schedule()(step)) == float(theirs(step))
    params = {"layers": {"mlp_in": {"kernel": jnp.ones((1, 2, 3)), "bias": jnp.ones((1, 3))}}}
    expected = optax.chain(
        optax.clip_by_global_norm(1.0), optax.lion(theirs, weight_decay=0.5, mask=decay_mask)
    )
    grads = jax.tree.map(lambda x: 3.0 * x, params)
    for step, theirs_too in enumerate((run.transformation(), expected)):
        state = theirs_too.init(params)
        with jax.numpy_dtype_promotion("standard"):
            for _ in range(3):
                updates, state = theirs_too.update(grads, state, params)
        if step == 0:
            first = updates
    jax.tree.map(np.testing.assert_array_equal, first, updates)
    own = updates["layers"]["mlp_in"]
    assert own["bias"].max() > own["kernel"].max(), "a kernel decays, a bias does not"


def test_all_parameters_of_muon_follow_the_schedule():
    """Warm-up starts at 0; the cosine ends at 0. An embedding and a bias are AdamW's."""
    run = loaded("TRAIN_STEPS=3", optimizer="muon")
    own = {"kernel": jnp.ones((1, 2, 3)), "bias": jnp.ones((1, 3))}
    params = {"embedding": jnp.ones((4, 2)), "layers": {"mlp_in": own}}
    transformation, largest = run.transformation(), []
    state = transformation.init(params)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(4):
            updates, state = transformation.update(params, state, params)
            largest.append([float(abs(one).max()) for one in jax.tree.leaves(updates)])
    assert largest[0] == largest[3] == [0.0, 0.0, 0.0]
    assert min(largest[1]) > 0 and largest[2] > largest[1]


def test_a_constant_rate_and_one_transformation():
    given = ["pretrain.optimizer=@optax.sgd()", "optax.sgd.learning_rate=0.5"]
    assert float(loaded(*given).schedule()(7)) == 0.5


@pytest.mark.parametrize("name", ["apply_if_finite.inner", "contrib.sam.optimizer"])
def test_the_rate_is_that_of_a_wrapped_optimizer(name):
    """Without it, a scale by another rate would seem to be missing, which turns the descent."""
    outer = name.rpartition(".")[0]
    given = [f"optax.{name}=@optax.sgd()", "optax.sgd.learning_rate=0.5"]
    given += {
        "apply_if_finite": ["optax.apply_if_finite.max_consecutive_errors=3"],
        "contrib.sam": [
            "optax.contrib.sam.adv_optimizer=@optax.adam()",
            "optax.adam.learning_rate=0.1",
        ],
    }[outer]
    run = loaded(f"pretrain.optimizer=@optax.{outer}()", *given)
    run.check_optimizer()
    assert float(run.schedule()(7)) == 0.5


@pytest.mark.parametrize(
    "bindings, words",
    [
        (["pretrain.optimizer=@optax.adafacter()"], "Did you mean @optax.adafactor?"),
        (["pretrain.optimizer=@optax.lion()", "optax.lion.rate=1"], "has no parameter rate"),
        (["pretrain.optimizer=@optax.lion()"], "optax.lion.learning_rate has no value"),
        (
            ["pretrain.optimizer=@optax.lion()", "optax.lion.learning_rate=fast"],
            "optax.lion.learning_rate expects float",
        ),
        (["pretrain.optimizer=@optax.adafactor()"], "has no learning rate"),
        (["pretrain.optimizer=()"], "is an empty list"),
        (["pretrain.optimizer=@optax.constant_schedule()"], "pretrain.optimizer expects Optimizer"),
        (
            ["pretrain.optimizer=@optax.sgd()", "optax.sgd.learning_rate=1", "AdamW.b1=0.5"],
            "nothing in this experiment uses AdamW",
        ),
        (
            [
                "pretrain.optimizer=@optax.sgd()",
                "optax.sgd.learning_rate=@optax.sgdr_schedule()",
                "optax.sgdr_schedule.cosine_kwargs=3",
            ],
            "optax.sgdr_schedule: ",
        ),
    ],
)
def test_mistakes_are_told(bindings, words):
    with pytest.raises(UserError) as told:
        loaded(*bindings).check_optimizer()
    assert words in str(told.value) and len(str(told.value).splitlines()) <= 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the seed of dpsgd
@pytest.mark.parametrize(
    "name, words",
    [
        ("momo_adam", None),
        ("momo", None),
        ("sam", None),  # its update names the extra arguments that it takes
        ("schedule_free_adamw", None),
        ("reduce_on_plateau", None),
        ("dpsgd", "expects `grads` to have a batch dimension"),
        ("sophia", "obj_fn must be provided"),
        ("lbfgs", "missing 1 required keyword-only argument: 'value_fn'"),
        ("lookahead", "has no attribute 'fast'"),
    ],
)
def test_an_optimizer_that_needs_more_than_a_step_provides_is_refused(name, words):
    """The loss is provided, but neither its function nor the gradients of single examples."""
    made = optax_configurables()
    sgd = made["optax.sgd"](learning_rate=0.1)
    given = {
        "sam": {"optimizer": sgd, "adv_optimizer": sgd},
        "lookahead": {"fast_optimizer": sgd, "sync_period": 2, "slow_step_size": 0.5},
        "lbfgs": {},
        "reduce_on_plateau": {},
        "dpsgd": {"learning_rate": 0.1, "l2_norm_clip": 1.0, "noise_multiplier": 0.1, "seed": 0},
    }.get(name, {"learning_rate": 0.1})
    where = "optax" if name in ("lbfgs", "lookahead") else "optax.contrib"
    own = made[f"{where}.{name}"](**given)
    params = {"embedding": jnp.ones((4, 6)), "layers": {"mlp_in": {"kernel": jnp.ones((1, 6, 8))}}}
    together = Chain((own, sgd))
    if words is None:
        check_optimizer(together, 10, params, "pretrain.optimizer")
        return
    with pytest.raises(UserError) as told:
        check_optimizer(together, 10, params, "pretrain.optimizer")
    message = str(told.value)
    assert message.startswith("pretrain.optimizer cannot make an update: ") and words in message
    assert len(message.splitlines()) == 2


def test_an_optimizer_that_changes_its_state_is_refused():
    def update(updates, state, params=None):
        return updates, state.astype(jnp.float32)

    changing = Optax(optax.GradientTransformation(lambda params: jnp.int32(0), update), 0.1)
    with pytest.raises(UserError, match=r"changes '0' from int32\[\] to float32\[\]"):
        check_optimizer(changing, 10, {"embedding": jnp.ones(2)}, "pretrain.optimizer")


@pytest.mark.ci
def test_an_optimizer_receives_the_objective_of_the_batch():
    """It is the mean over the tokens of all microbatches, with z-loss, as its gradient is."""

    def update(updates, state, params=None, *, value, grad, **extra):
        del state, params, extra
        return jax.tree.map(jnp.zeros_like, updates), (value, optax.tree.norm(grad))

    optimizer = optax.GradientTransformationExtraArgs(
        lambda params: (jnp.float32(0), jnp.float32(0)), update
    )
    model, weights = tiny_run().model, np.ones((4, 16), np.int8)
    targets = np.arange(64, dtype=np.int32).reshape(4, 16)
    settings = {"model": model, "optimizer": optimizer, "z_loss": 1.0, "microbatches": 2}
    state = init_state(model, optimizer, jax.random.key(0))
    batch = {"targets": targets, "weights": weights}
    new, metrics = jax.jit(functools.partial(train_step, seed=0, **settings))(state, batch)
    value, norm = new.opt_state
    pos_BT = jnp.arange(16)[None]
    objective, _ = jax.jit(summed_loss, static_argnums=(1, 5))(
        state.params, model, targets, weights, pos_BT, 1.0
    )
    np.testing.assert_allclose(value, objective / 64, rtol=1e-5)
    np.testing.assert_allclose(norm, metrics["grad_norm"], rtol=1e-5)
    assert value > metrics["loss"] + 1, "the loss in the log has no z-loss"


def test_the_matrices_of_muon_are_those_of_each_layer():
    params = jax.eval_shape(lambda: loaded().abstract_state().params)
    found = muon_dimensions(params)
    assert found["embedding"] is None and found["layers"]["position"]["L_multiplier"] is None
    for name, (read, written) in {
        "query": ((1,), (2, 3)), "attention_out": ((1, 2), (3,)), "mlp_out": ((1,), (2,)),
    }.items():  # fmt: skip
        kernel = params["layers"][name]["kernel"]
        assert found["layers"][name]["kernel"] == (read, written)
        assert {0, *read, *written} == set(range(kernel.ndim)), "the layer is the batch axis"
        assert found["layers"][name]["bias"] is None
    gated = {"layers": {"mixer_gate": {"kernel": jnp.zeros((2, 4, 3))}}}
    assert muon_dimensions(gated) == {"layers": {"mixer_gate": {"kernel": None}}}
    # Each layer is orthogonalised separately: the gradient of another layer does not matter.
    update = optax.contrib.muon(1.0, muon_weight_dimension_numbers=muon_dimensions)
    tree = {"layers": {"mlp_in": {"kernel": jax.random.normal(jax.random.key(0), (2, 4, 4))}}}
    with jax.numpy_dtype_promotion("standard"):
        both, _ = update.update(tree, update.init(tree), tree)
        scaled = jax.tree.map(lambda x: x * jnp.array([1.0, 50.0])[:, None, None], tree)
        other, _ = update.update(scaled, update.init(tree), tree)
    kernels = [one["layers"]["mlp_in"]["kernel"] for one in (both, other)]
    np.testing.assert_allclose(kernels[0][0], kernels[1][0], atol=1e-5)
    singular = np.linalg.svd(np.asarray(kernels[0][1]), compute_uv=False)
    assert 0.5 < singular.min() and singular.max() < 1.5


def test_moments_are_laid_out_as_their_parameters():
    """Adafactor's moments have one axis less, with a placeholder for those that do not exist."""
    wide = [f"size_tiny.{name}" for name in ("hidden_size=128", "mlp_size=256", "num_heads=2")]
    run = loaded(*wide, "size_tiny.head_dim=64", *MESH, optimizer="adafactor")
    state, mesh = run.abstract_state(), make_mesh(run.mesh)
    specs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): found.spec
        for path, found in jax.tree_util.tree_leaves_with_path(tree_shardings(state, mesh))
    }
    (factored,) = {name.split("/v_row/")[0] for name in specs if "/v_row/" in name}
    kernel = "layers/mlp_in/kernel"  # [L, D, F]; F is the larger
    assert specs[f"params/{kernel}"] == PartitionSpec(None, "fsdp", "tensor")
    assert specs[f"{factored}/v_row/{kernel}"] == PartitionSpec(None, "fsdp")
    assert specs[f"{factored}/v_col/{kernel}"] == PartitionSpec(None, "tensor")
    assert specs[f"{factored}/v/{kernel}"] == PartitionSpec()  # a single entry
    assert specs[f"{factored}/v/layers/mlp_in/bias"] == PartitionSpec(None, "tensor")
    assert specs[f"{factored}/v_row/layers/mlp_in/bias"] == PartitionSpec()


def trained(workdir: Path, optimizer: str) -> None:
    bindings = [
        "WARMUP_STEPS=1", "TRAIN_STEPS=6", "BATCH_SIZE=4", "TRAIN_LENGTH=16",
        "Synthetic.max_length=8", "Checkpointing.save_every=3", "pretrain.log_every=1",
        "size_tiny.num_layers=2", "size_tiny.hidden_size=128", "size_tiny.mlp_size=128",
        "size_tiny.num_heads=2", "size_tiny.head_dim=64", "VOCAB_SIZE=128", *MESH,
    ]  # fmt: skip
    files = ("synthetic/reverse_string", "positions/fire", f"optim/{optimizer}")
    arguments = [f"--gin_file=configs/{file}.gin" for file in files]
    arguments += [f"--gin.{binding}" for binding in bindings]
    assert cli.main(["pretrain", *arguments, f"--workdir={workdir}"]) == 0


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(name, marks=pytest.mark.ci if name == "muon" else pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_a_run_resumes_to_the_same_bits(optimizer, tmp_path):
    """On a mesh of 2 x 2 devices, a run repeats the steps after its removed last checkpoint."""
    trained(tmp_path, optimizer)
    whole, lines = saved_state(tmp_path, 6), logged(tmp_path)
    assert any(name.startswith("opt_state/") and value.any() for name, value in whole.items())
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    trained(tmp_path, optimizer)
    assert logged(tmp_path) == lines
    assert_same_arrays(saved_state(tmp_path, 6), whole)
    metrics = [json.loads(one) for one in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    peak = {"adafactor": 1e-2, "lion": 1e-4, "muon": 2e-2}[optimizer]
    assert metrics[1]["learning_rate"] == pytest.approx(peak)
