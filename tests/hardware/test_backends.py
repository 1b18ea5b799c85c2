"""JAX_PLATFORMS and JAX_PLATFORM_NAME may select a backend that does not exist or fails."""

import jax
import pytest

from fire_lm import cli
from fire_lm.errors import RunFailed, UserError
from fire_lm.hardware import backends


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (AssertionError(), UserError, "is 'cuda': this backend is not available"),
        (
            RuntimeError(
                "Unable to initialize backend 'cuda': Backend 'cuda' is not in the list of known "
                "backends: ['cpu', 'tpu']. (set JAX_PLATFORMS='' to automatically choose)"
            ),
            UserError,
            "is 'cuda': there is no such backend",
        ),
        (
            RuntimeError("Unable to initialize backend 'cuda': in use\nby another"),
            RunFailed,
            "is 'cuda': Unable to initialize backend 'cuda': in use",
        ),
    ],
)
def test_a_backend_that_cannot_be_used_is_named(error, kind, told, monkeypatch, capsys):
    devices = jax.devices()
    calls: list[BaseException] = [error]

    def initialise() -> list[jax.Device]:
        if calls:
            raise calls.pop()
        return devices

    def fail(parsed: object) -> None:
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(jax, "devices", initialise)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(cli, "perform", fail)
    assert cli.main(["sweep", "run"]) == kind.exit_code
    line = capsys.readouterr().err.strip()
    assert line == f"fire-lm: JAX_PLATFORMS {told}; available here: cpu"


def test_a_backend_that_works_is_no_cause_of_an_error(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert backends.backend_problem() is None
    monkeypatch.setattr(cli, "perform", lambda parsed: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["sweep", "run"])
