"""Variables of the environment cannot change results."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from environments import with_devices
from sample_run import assert_same_state, command_on_blocks, logged

from fire_lm.errors import UserError
from fire_lm.hardware import jax_settings

VARIABLES = {
    "JAX_ENABLE_X64": "1",
    "JAX_DEFAULT_PRNG_IMPL": "rbg",
    "JAX_THREEFRY_PARTITIONABLE": "0",
    "JAX_RANDOM_SEED_OFFSET": "7",
    "JAX_HIGH_DYNAMIC_RANGE_GUMBEL": "1",
    "JAX_SOFTMAX_CUSTOM_JVP": "1",
    "JAX_USE_DIRECT_LINEARIZE": "0",
    "JAX_EXPLICIT_X64_DTYPES": "allow",
    "JAX_ENABLE_CUSTOM_PRNG": "1",
    "JAX_NUMPY_DTYPE_PROMOTION": "strict",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "JAX_ALLOW_F16_REDUCTIONS": "0",
    "JAX_LEGACY_PRNG_KEY": "error",
}


def test_every_fixed_setting_has_its_value_whatever_the_environment(monkeypatch, capsys):
    assert {name.upper() for name in jax_settings._FIXED} == set(VARIABLES)
    before = {name: getattr(jax.config, name) for name in jax_settings._FIXED}
    try:
        for name in before:
            monkeypatch.setenv(name.upper(), VARIABLES[name.upper()])
        monkeypatch.setenv("JAX_RANDOM_SEED_OFFSET", "7")
        jax.config.update("jax_random_seed_offset", 7)
        jax.config.update("jax_default_prng_impl", "rbg")
        jax_settings.ignore_variables()
        told = capsys.readouterr().err
        assert "JAX_DEFAULT_PRNG_IMPL=rbg" in told and "JAX_RANDOM_SEED_OFFSET=7" in told
        assert jax.random.key_impl(jax.random.key(0)) == "threefry2x32"
        jax_settings.ignore_variables()
        assert capsys.readouterr().err == "", "nothing is left to change"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_another_precision_is_refused():
    jax_settings.check_same_precision({"tokens": 3})
    with jax.default_matmul_precision("highest"):
        saved = jax_settings.precision()
        jax_settings.check_same_precision(saved)
    with pytest.raises(UserError, match="MATMUL_PRECISION is unset, but was highest when"):
        jax_settings.check_same_precision(dict(saved))


@pytest.mark.ci
def test_a_run_and_its_text_are_the_same_under_all_variables(blocks: Path, tmp_path: Path):
    runs = {name: tmp_path / name / "run" for name in ("plain", "variables")}
    written = {}
    for name, run in runs.items():
        variables = VARIABLES if name == "variables" else {}
        asked = command_on_blocks(blocks, run, "--gin.build_decoder.dropout=0.1")
        told = fire_lm(variables, *asked).stderr
        assert ("JAX_ENABLE_X64=1" in told) is bool(variables)
        written[name] = fire_lm(variables, "generate", f"{run}", "--prompt=the fire").stdout
    assert written["plain"] == written["variables"]
    assert logged(runs["plain"]) == logged(runs["variables"])
    assert_same_state(runs["plain"], runs["variables"])


def fire_lm(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fire_lm", *arguments],
        env=with_devices(1) | variables,
        capture_output=True,
        text=True,
        check=True,
    )
