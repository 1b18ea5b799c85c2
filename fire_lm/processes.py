"""The processes of a multi-host job: how they find each other, and agree on what one knows."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax._src import distributed

from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.hardware.absent_tpu import has_tpu

_Json = TypeVar("_Json")
_exchanges = itertools.count()
# Until the watchdog looks on, JAX itself ends a job one of whose processes has died.
_SILENCE_SECONDS = 60


def initialize_distributed() -> None:
    """Join the processes of a multi-host job, where the machine or its environment says so.

    On a Cloud TPU VM JAX finds the other hosts by itself (metadata server or GKE variables).
    Elsewhere JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name them. A single
    machine without a TPU needs nothing.
    """
    if jax.distributed.is_initialized():
        return
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            count, index = (int(os.environ[f"JAX_{n}"]) for n in ("NUM_PROCESSES", "PROCESS_ID"))
        except (KeyError, ValueError) as error:
            raise UserError(
                "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES and JAX_PROCESS_ID must "
                f"be numbers too: {error}"
            ) from error
        jax.distributed.initialize(
            num_processes=count, process_id=index, heartbeat_timeout_seconds=_SILENCE_SECONDS
        )
    elif has_tpu():
        jax.distributed.initialize(heartbeat_timeout_seconds=_SILENCE_SECONDS)


def coordination_client() -> Any:
    """The client of JAX's coordination service, which JAX does not publish; of jobs of several."""
    return distributed.global_state.client


def coordinator_host() -> str:
    """The host name or address of process 0."""
    return str(distributed.global_state.coordinator_address).rpartition(":")[0].strip("[]")


def exchanged(value: _Json, seconds: float = 3600.0, key: str = "") -> list[_Json]:
    """The `value` (JSON) of every process, in their order. All processes must call it together.

    It goes through JAX's coordination service: some processes may arrive minutes later than others,
    which a collective does not survive (see `wait_for_all`).

    Args:
      seconds: how long to wait for each process.
      key: a name for this exchange, unique in the job. Without one, exchanges are counted, so
        threads of a process that exchange at the same time must name theirs.
    """
    if jax.process_count() == 1:
        return [value]
    client = coordination_client()
    key = f"fire_lm/exchanged/{key or next(_exchanges)}"
    client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
    return [
        json.loads(client.blocking_key_value_get(f"{key}/{index}", int(1000 * seconds)))
        for index in range(jax.process_count())
    ]


def agreed(value: _Json) -> _Json:
    """The `value` of process 0, on every process; see `exchanged`."""
    return exchanged(value)[0]


def by_first(work: Callable[[], _Json]) -> _Json:
    """Run `work` on process 0 and return, or raise, its result (JSON) on every process."""
    told: dict[str, Any] = {}
    if jax.process_index() == 0:
        try:
            told = {"value": work()}
        except FireLMError as error:
            told = {"error": str(error), "code": error.exit_code}
    told = agreed(told)
    if "error" in told:
        # Process 0 takes the service of the others with it when it ends.
        wait_for_all(f"error {next(_exchanges)}", seconds=60)
        raise (UserError if told["code"] == 2 else RunFailed)(told["error"])
    value: _Json = told["value"]
    return value


def wait_for_all(point: str, seconds: float = 3600.0) -> None:
    """Return once every process of the job has come to `point`; each needs a name of its own.

    Before the first collective of a kind: the CPU's (gloo) gives up when a process comes to it
    half a minute after another, and compiling may well take one that much longer.

    Raises:
      RunFailed: a process has not come within `seconds`.
    """
    if jax.process_count() == 1:
        return
    try:
        coordination_client().wait_at_barrier(f"fire_lm/{point}", int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RunFailed(
            f"the processes of this job did not all get to '{point}': {reason}"
        ) from error
