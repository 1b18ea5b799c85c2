"""Strict settings for every test; this file is imported before any test can start JAX.

Tests run on four fake CPU devices without implicit dtype or rank promotion; warnings are errors
(pyproject.toml). The environment variables reach the processes that a test starts. The JAX settings
do not, because users run without them, except for the cache of compiled programs: many tests train
the same small model. Programs are compiled with few optimizations, because compiling takes longer
than running them.
"""

import gc
import importlib.util
import os
import signal
import threading
from pathlib import Path

# A shell makes background processes ignore Ctrl-C, and nohup makes them ignore hangups; the runs
# that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
# TensorFlow reads this when it is imported: it then retries a bucket without delay (bucket.py).
os.environ["GCS_RETRY_CONFIG_INIT_DELAY_TIME_US"] = "0"
# A thread that waits for other devices is blocked, and devices may wait for different collectives
# at the same time. XLA has as many threads as cores or, if there are more, devices; all four may be
# blocked, and XLA then ends the process.
os.environ["PJRT_NPROC"] = "32"
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = " ".join(
    filter(
        None,
        [
            os.environ.get("XLA_FLAGS"),
            "--xla_force_host_platform_device_count=4",
            # For a run of one layer, these further reduce CPU time of compiling from 35 to 13 s.
            "--xla_cpu_use_fusion_emitters=false",
            "--xla_cpu_parallel_codegen_split_count=1",
        ],
    )
)

import jax  # noqa: E402  (the variables above must be set first)
import pytest  # noqa: E402
from jax._src.lru_cache import LRUCache  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


KEEP_ALL = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}

# These files take minutes each: started at the end of a tier, they would leave other workers idle.
LONGEST = (
    "test_preflight.py",
    "test_tpu_kernel_compile.py",
    "test_multi_process.py",
    "test_family.py",
    "test_blocks_training.py",
    "test_positions.py",
    "test_bucket_runs.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--encoding", metavar="NAME", help="only the tests of this encoding")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if name := config.getoption("--encoding"):
        items[:] = [item for item in items if of_encoding(item) == name]


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection, and collect the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of the interop tier where a package that it needs is not installed.

    If `-m` selects the tier, as scripts/test --interop does, a missing package is a failure.
    """
    selected = item.config.getoption("-m").startswith("interop")
    for marker in item.iter_markers("interop"):
        for package in marker.args:
            if not installed(package):
                (pytest.fail if selected else pytest.skip)(f"{package} is not installed")


def installed(module: str) -> bool:
    """Return whether a module can be found; this imports its parent package, but not the module."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def of_encoding(item: pytest.Item) -> object:
    """Return the encoding that a test of test_positions.py concerns, or None if it concerns all."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("name")


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory):
    """Cache compiled programs for the session.

    All of pytest-xdist's workers share one cache. The processes that tests start have another for
    each worker, because some of them are killed while they write.
    """
    own = tmp_path_factory.getbasetemp()
    session = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LRUCache, "put", put_at_once)
        for name, value in KEEP_ALL.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        jax.config.update("jax_compilation_cache_dir", str(session / "compiled"))
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(own / "compiled_by_processes"))
        patch.setenv("XDG_CACHE_HOME", str(own / "user_cache"))  # never the developer's own
        yield


@pytest.fixture(scope="module", autouse=True)
def release_compiled_programs():
    """Release the compiled programs of a file after its tests.

    Each of them holds several memory mappings. Linux allows a process 65,530, and XLA crashes
    beyond that limit.
    """
    yield
    jax.clear_caches()
    mappings = Path("/proc/self/maps")
    held = mappings.read_bytes().count(b"\n") if mappings.exists() else 0
    assert held < 20_000, f"{held} memory mappings are still held after the tests of this file"


def put_at_once(cache: LRUCache, key: str, value: bytes) -> None:
    """Write an entry atomically: JAX writes in place, where another worker could read half."""
    entry = Path(str(cache.path), f"{key}-cache")
    if not entry.exists():
        partial = entry.with_name(f"{key}.{os.getpid()}")
        partial.write_bytes(value)
        partial.replace(entry)


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """Return a folder with `text`, its `blocks` and a run, `finished`, which all workers share.

    Tests change only copies of them.
    """
    from sample_run import trained_once

    own = tmp_path_factory.getbasetemp()
    return trained_once((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "trained")


@pytest.fixture(scope="session")
def data_dir(trained) -> Path:
    return trained / "text"


@pytest.fixture(scope="session")
def blocks(trained) -> Path:
    return trained / "blocks"


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """Return stand-ins for Google's programs, which are on PATH (tpu_cloud.py)."""
    import tpu_cloud

    monkeypatch.setattr("tpu.commands.pause", lambda seconds: None)
    return tpu_cloud.Cloud(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def authority_of_the_bucket():
    """Set the certificates, which tensorstore reads once per process, at its first request."""
    from bucket import shared

    os.environ["TENSORSTORE_CA_BUNDLE"] = shared().environment()["TENSORSTORE_CA_BUNDLE"]


@pytest.fixture
def bucket(monkeypatch):
    """Yield a new, empty bucket for the libraries in this process, which retry without delay."""
    from bucket import in_process

    quick = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "1ms"}
    monkeypatch.setattr("fire_lm.storage.objects.RETRIES", quick)
    with in_process(monkeypatch) as bucket:
        yield bucket


@pytest.fixture(autouse=True)
def hangups_are_not_ignored() -> None:
    """Undo what an earlier test has set, which the processes that a test starts would inherit."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
