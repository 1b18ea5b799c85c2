"""Initialisation of, and communication between, the processes of a multi-host job.

Messages of `say` are printed once per job.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax._src import distributed

from fire_lm.errors import FireLMError, RunFailed, UserError
from fire_lm.hardware.absent_tpu import has_tpu

_Json = TypeVar("_Json")
_exchanges = itertools.count()
# JAX's heartbeat timeout, after which JAX ends the job if a process has died. This covers the time
# before the watchdog starts.
_SILENCE_SECONDS = 60
_ARRIVAL_SECONDS = 3600  # the maximum time to wait for each process


def initialize_distributed() -> None:
    """Join a multi-host job if the machine or the environment variables describe one.

    On a Cloud TPU VM, JAX discovers the other hosts through the metadata server or the GKE
    variables. Elsewhere, JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID describe the
    job. A single machine without a TPU needs no configuration.

    Raises:
      UserError: These environment variables are incomplete or invalid.
    """
    if jax.distributed.is_initialized():
        return
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        if not re.fullmatch(r".+:\d+", address):
            raise UserError(f"JAX_COORDINATOR_ADDRESS is {address!r}: it must be HOST:PORT")
        try:
            count, index = (int(os.environ[f"JAX_{n}"]) for n in ("NUM_PROCESSES", "PROCESS_ID"))
        except (KeyError, ValueError) as error:
            raise UserError(
                "JAX_COORDINATOR_ADDRESS is set, so JAX_NUM_PROCESSES and JAX_PROCESS_ID must also "
                f"be set to whole numbers: {error}"
            ) from error
        if count < 1:
            raise UserError(f"JAX_NUM_PROCESSES is {count}: it must be 1 or more")
        if not 0 <= index < count:
            raise UserError(
                f"JAX_PROCESS_ID is {index}: it must be from 0 to JAX_NUM_PROCESSES - 1 = "
                f"{count - 1}"
            )
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            num_processes=count, process_id=index, heartbeat_timeout_seconds=_SILENCE_SECONDS
        )
    elif has_tpu():
        jax.distributed.initialize(heartbeat_timeout_seconds=_SILENCE_SECONDS)


def coordination_client() -> Any:
    """Return the client of JAX's coordination service, or None if JAX has not joined a job.

    JAX does not expose this client in its public API.
    """
    return distributed.global_state.client


def coordinator_host() -> str:
    """Return the host name or address of process 0."""
    return str(distributed.global_state.coordinator_address).rpartition(":")[0].strip("[]")


def exchanged(value: _Json, key: str = "") -> list[_Json]:
    """Return the values that all processes pass to this function, in process order.

    All processes must call this function. The values travel through JAX's coordination service,
    because some processes may arrive minutes after others, and a collective would fail in that case
    (see `wait_for_all`).

    Args:
      value: This process's value, which must be JSON-serialisable.
      key: A name for this exchange that is unique within the job. By default, the name is a
        running number, so threads of one process that exchange values concurrently must each pass a
        key.
    """
    if jax.process_count() == 1:
        return [value]
    client = coordination_client()
    key = f"fire_lm/exchanged/{key or next(_exchanges)}"
    client.key_value_set(f"{key}/{jax.process_index()}", json.dumps(value))
    return [
        json.loads(client.blocking_key_value_get(f"{key}/{index}", 1000 * _ARRIVAL_SECONDS))
        for index in range(jax.process_count())
    ]


def agreed(value: _Json) -> _Json:
    """Return process 0's `value` on every process; see `exchanged`."""
    return exchanged(value)[0]


def by_first(work: Callable[[], _Json]) -> _Json:
    """Run `work` on process 0; on every process, return its result or raise its `FireLMError`.

    The result must be JSON-serialisable.
    """
    result: Any = None
    with failing_together():
        if jax.process_index() == 0:
            result = work()
    of_first: _Json = agreed(result)
    return of_first


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Raise a `FireLMError` on every process if any process raises one in the block.

    All processes must enter the block.
    """
    own: FireLMError | None = None
    try:
        yield
    except FireLMError as error:
        own = error
    failures = filter(None, exchanged([] if own is None else [own.exit_code, str(own)]))
    if failure := next(failures, None):
        # Process 0 hosts the coordination service, so it must not exit before the others are done.
        wait_for_all(f"error {next(_exchanges)}", seconds=60)
        code, text = failure
        if own is None:
            raise (UserError if code == 2 else RunFailed)(text, everywhere=True)
        own.everywhere = True
        raise own


def wait_for_all(point: str, seconds: float = _ARRIVAL_SECONDS) -> None:
    """Wait until every process of the job has reached `point`, whose name must be unique.

    Call this function before the first collective of each kind. The CPU collectives (gloo) fail if
    one process arrives half a minute after another, and compilation times can easily differ by that
    much.

    Raises:
      RunFailed: A process did not arrive within `seconds`.
    """
    if jax.process_count() == 1:
        return
    try:
        coordination_client().wait_at_barrier(f"fire_lm/{point}", int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RunFailed(f"not all processes of this job reached '{point}': {reason}") from error


def say(words: str) -> None:
    """Print a message on process 0 only, so that it appears once in a job of several processes."""
    if jax.process_index() == 0:
        print(words, flush=True)


say_once = functools.cache(say)


@functools.cache
def note_once(words: str) -> None:
    """Print a message once to standard error, on process 0; results may go to standard output."""
    if jax.process_index() == 0:
        print(words, file=sys.stderr, flush=True)
