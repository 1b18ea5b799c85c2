"""Checkpoints in a bucket: what a run may lose there, what it must keep, and what a save costs."""

import contextlib
import dataclasses
import hashlib
import re
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bucket import Bucket
from bucket_faults import Cut, Denied, LostAnswer, Status
from jax.sharding import NamedSharding, PartitionSpec

from fire_lm import storage
from fire_lm.checkpoints import Checkpointing, Checkpoints, available_steps, choose_step, writer
from fire_lm.checkpoints import restore_params as restore
from fire_lm.checkpoints.fingerprints import fingerprints, in_words
from fire_lm.errors import RunFailed
from fire_lm.training.goodput import Goodput, starts
from fire_lm.training.step import TrainState

INFO = {"tokens": 1}


def state(scale: float) -> TrainState:
    params = {
        "embedding": jnp.arange(48.0).reshape(16, 3) * scale,
        "layers": {"query": jnp.full((2, 8), scale, jnp.bfloat16)},
    }
    return TrainState(jnp.int32(scale), params, jax.tree.map(lambda x: x / 2, params))


@contextlib.contextmanager
def checkpoints(bucket: Bucket, **policy: int):
    with contextlib.closing(Checkpoints(bucket.url("run"), Checkpointing(**policy))) as run:
        yield run


def save(bucket: Bucket, *steps: int, **policy: int) -> None:
    with checkpoints(bucket, **policy) as run:
        for step in steps:
            run.save(step, state(step), b"place", INFO)


def recovered(bucket: Bucket) -> tuple[int, Any]:
    """Return the newest intact step and the state restored from it."""
    with checkpoints(bucket) as run:
        step, found = run.recover(), None
        while step and found is None:
            found = run.restore(step, state(0))
            step = step if found is not None else run.recover()
        return step, found


def assert_is(found: Any, step: int) -> None:
    assert found is not None and found[1:] == (b"place", INFO)
    jax.tree.map(np.testing.assert_array_equal, found[0], state(step))


def names(bucket: Bucket, step: int) -> list[str]:
    return [name for name in bucket.objects if name.startswith(f"run/checkpoints/{step}")]


def test_a_save_and_a_restore_keep_to_their_budgets(bucket: Bucket):
    save(bucket, 1)
    with bucket.counting() as counted:
        save(bucket, 2)
    assert counted.count() <= 150
    with bucket.counting() as counted:
        step, found = recovered(bucket)
    assert counted.count() <= 60
    assert step == 2
    assert_is(found, 2)


def test_the_arrays_of_a_save_are_not_read_back(bucket: Bucket):
    large = TrainState(jnp.int32(1), {"noise": jax.random.normal(jax.random.key(0), (2**16,))}, ())
    with bucket.counting() as counted, checkpoints(bucket) as run:
        run.save(1, large, b"place", INFO)
    read = counted.find("checkpoints/1/state", operation="download")
    assert sum(one.sent for one in read) < 2**16 < sum(one.received for one in counted.requests)


def test_a_step_that_is_there_survives_a_second_save_of_it(bucket: Bucket, capsys):
    save(bucket, 5)
    before = bucket.objects
    with pytest.raises(RunFailed, match="checkpoint 5 of .* could not be saved: .*already exists"):
        save(bucket, 5)
    assert bucket.objects == before
    assert_is(recovered(bucket)[1], 5)


@pytest.mark.parametrize("fault", [Status(status=403), Status(status=503)])
def test_storage_that_cannot_be_read_is_no_run_without_checkpoints(bucket: Bucket, fault):
    save(bucket, 5)
    before = bucket.objects
    bucket.faults = [fault]
    for ask in (
        lambda: available_steps(bucket.url("run")),
        lambda: choose_step(bucket.url("run"), None),
        lambda: recovered(bucket),
    ):
        with pytest.raises(RunFailed, match="cannot be (read|listed): "):
            ask()
    assert bucket.objects == before


def test_a_refused_save_fails_within_seconds_with_its_cause(bucket: Bucket, capsys):
    save(bucket, 1)
    bucket.faults = [Denied(prefix="run/checkpoints/2", to="writes")]
    start = time.monotonic()
    with checkpoints(bucket) as run:
        run.save(2, state(2), b"place", INFO)
        run.settle()
        assert time.monotonic() - start < 30
        told = capsys.readouterr().err
        assert re.search("checkpoint 2 of .* could not be saved: .*loopback does not have", told)
        assert "training continues" in told
        bucket.faults = []
        run.save(3, state(3), b"place", INFO)
    assert available_steps(bucket.url("run")) == [1, 3]
    assert "Event loop is closed" not in capsys.readouterr().err


@pytest.mark.ci
def test_faults_that_pass_change_nothing(bucket: Bucket):
    bucket.faults = [Status(status=503, chance=0.02), Cut(chance=0.02), LostAnswer(chance=0.02)]
    save(bucket, 1, 2, keep_last=1)
    step, found = recovered(bucket)
    assert len({one.fault for one in bucket.log.requests if one.fault}) == 3
    assert step == 2
    assert_is(found, 2)
    assert names(bucket, 1) == []


def test_a_save_that_never_ended_is_removed_and_not_copied(bucket: Bucket, capsys):
    save(bucket, 1, 2)
    bucket.delete("run/checkpoints/2/manifest.sha256")
    with bucket.counting() as counted:
        step, found = recovered(bucket)
    assert step == 1
    assert_is(found, 1)
    assert counted.count(operation="rewrite") == 0 and names(bucket, 2) == []
    assert (
        "is incomplete (its save never finished): removed; resuming from step 1"
        in capsys.readouterr().err
    )


def test_what_a_removal_has_left_below_the_newest_step_is_removed(bucket: Bucket):
    save(bucket, 2)
    for name in names(bucket, 2):  # as if killed while removing step 1
        if not name.endswith("manifest.sha256"):
            bucket.put(name.replace("/2/", "/1/"), bucket.objects[name])
    assert recovered(bucket)[0] == 2
    assert names(bucket, 1) == [] and available_steps(bucket.url("run")) == [2]


def arrays_of(bucket: Bucket, step: int) -> list[str]:
    """Return the objects that contain arrays, largest first."""
    found = [name for name in names(bucket, step) if "/d/" in name]
    return sorted(found, key=lambda name: -len(bucket.objects[name]))


def test_an_array_that_has_changed_is_seen_by_its_restore(bucket: Bucket, monkeypatch, capsys):
    """A restore detects a changed array, as if a bit had flipped in storage or in transit."""
    save(bucket, 1)
    written = state(2)
    embedding = np.array(written.params["embedding"])
    embedding.view(np.uint32)[7, 1] ^= 1
    written.params["embedding"] = jnp.asarray(embedding)
    with monkeypatch.context() as patched, checkpoints(bucket) as run:
        patched.setattr(writer, "fingerprints", lambda tree: fingerprints(state(2)))
        run.save(2, written, b"place", INFO)
    with pytest.raises(RunFailed, match="is damaged: params/embedding has changed since it was "):
        restore(bucket.url("run"), 2, state(0).params)
    step, found = recovered(bucket)
    assert step == 1
    assert_is(found, 1)
    assert (
        "has changed since it was saved): kept as 2.damaged; resuming from step 1"
        in capsys.readouterr().err
    )


def test_an_optimizer_with_another_data_type_is_no_damage(bucket: Bucket):
    """Orbax would convert the moments, whose fingerprints then differ."""
    save(bucket, 1, 2)
    like = state(0)
    moments = jax.tree.map(lambda x: x.astype(jnp.float16), like.opt_state)
    like = dataclasses.replace(like, opt_state=moments)
    with checkpoints(bucket) as run:
        with pytest.raises(RunFailed, match="is float32.* in the checkpoint, but float16"):
            run.restore(2, like)
        assert run.recover() == 2


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8])
def test_a_fingerprint_changes_with_every_bit_and_every_place(dtype):
    array = jnp.arange(24).reshape(4, 6).astype(dtype)
    bits = np.array(array).view(f"uint{8 * array.dtype.itemsize}")
    seen = {fingerprint(array)}
    for index in np.ndindex(bits.shape):
        for bit in range(8 * array.dtype.itemsize):
            other = bits.copy()
            other[index] ^= 1 << bit
            seen.add(fingerprint(jnp.asarray(other.view(array.dtype))))
    assert len(seen) == 1 + 24 * 8 * array.dtype.itemsize
    assert fingerprint(array[::-1]) not in seen and fingerprint(array.T) not in seen


def test_a_fingerprint_of_a_bool():
    """Optax's `apply_if_finite` keeps one in the optimizer's state."""
    assert fingerprint(jnp.asarray(True)) != fingerprint(jnp.asarray(False))


def test_a_fingerprint_does_not_depend_on_the_mesh():
    array = jnp.arange(64.0).reshape(4, 16)
    found = {fingerprint(array)}
    for devices, spec in ((4, ("x", None)), (2, (None, "x")), (4, (None, "x"))):
        mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
        found.add(fingerprint(jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))))
    assert len(found) == 1


def fingerprint(array: jax.Array) -> str:
    return in_words(fingerprints({"array": array}))["array"]


def test_a_missing_object_is_damage(bucket: Bucket, capsys):
    save(bucket, 1, 2)
    bucket.delete(arrays_of(bucket, 2)[0])
    assert recovered(bucket)[0] == 1
    assert "is missing): kept as 2.damaged" in capsys.readouterr().err


def test_a_manifest_without_arrays_is_damage(bucket: Bucket, capsys):
    save(bucket, 1)
    nothing = f"{hashlib.sha256(b'').hexdigest()}\n".encode()
    bucket.put("run/checkpoints/2/manifest.sha256", nothing)
    assert choose_step(bucket.url("run"), None) == 1
    assert recovered(bucket)[0] == 1
    assert "manifest.sha256 lists no arrays): kept as 2.damaged" in capsys.readouterr().err


# --- A run whose directory is taken over while it is saving.


@pytest.mark.ci
@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("saved_again", [True, False])
def test_a_save_that_was_overtaken_publishes_and_removes_nothing(
    bucket: Bucket, capsys, knows, saved_again
):
    """An overtaken save publishes and removes nothing.

    This is so if it `knows` from its lease, and if it loses the lease right after checking it.
    """
    save(bucket, 3, 5)
    all_is_written, go_on = threading.Event(), threading.Event()
    of_the_manifest: list[bool] = []

    def still_ours() -> None:
        if threading.current_thread() is threading.main_thread() or of_the_manifest:
            return
        of_the_manifest.append(True)
        all_is_written.set()
        assert go_on.wait(60)
        if knows:
            raise storage.LeaseLost("taken over")

    policy = Checkpointing(keep_last=1)
    earlier = Checkpoints(bucket.url("run"), policy, still_ours=still_ours)
    earlier.save(10, state(10), b"place", INFO)
    assert all_is_written.wait(60)
    assert recovered(bucket)[0] == 5
    assert names(bucket, 10) == []
    if saved_again:
        save(bucket, 10)
    before = bucket.objects
    go_on.set()
    earlier.settle()
    assert bucket.objects == before
    assert available_steps(bucket.url("run")) == ([3, 5, 10] if saved_again else [3, 5])
    assert ("training continues" in capsys.readouterr().err) is not knows
    with pytest.raises(RunFailed, match="10 of .* could not be saved: .*(taken over|process)"):
        earlier.close()


def test_nothing_is_removed_where_the_storage_does_not_say_whose_it_is(bucket: Bucket, capsys):
    save(bucket, 3)
    refuses = iter([None, None, RunFailed("no answer")])

    def still_ours() -> None:
        if problem := next(refuses):
            raise problem

    run = Checkpoints(bucket.url("run"), Checkpointing(keep_last=1), still_ours=still_ours)
    run.save(5, state(5), b"place", INFO)
    run.close()
    assert available_steps(bucket.url("run")) == [3, 5]
    assert "old checkpoints could not be removed: no answer" in capsys.readouterr().err


def test_a_storage_error_during_a_restore_says_so(bucket: Bucket):
    save(bucket, 2)
    with checkpoints(bucket) as run:
        assert run.recover() == 2
        bucket.faults = [Denied(prefix="run/checkpoints/2/state/d", to="reads")]
        with pytest.raises(RunFailed, match="checkpoint 2 of .* cannot be read: ") as error:
            run.restore(2, state(0))
        assert "another --workdir" not in str(error.value)


def test_where_the_time_went_survives_refusals_and_is_read_again(bucket: Bucket, capsys):
    goodput = Goodput(bucket.url("run"), quiet=False)
    goodput.resumed(0)
    bucket.faults = [Status(status=403)]
    goodput.saved(1)  # must not report "the run directory has been removed"
    bucket.faults = []
    with bucket.counting() as counted:
        goodput.saved(2)
    assert counted.count() <= 2
    goodput.close()
    assert [set(start["at_save"]) for start in starts(bucket.url("run"))] == [{"1", "2"}]
    assert "goodput cannot be written" in capsys.readouterr().err
