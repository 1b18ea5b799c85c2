"""The seqio tasks and mixtures for the data sets in a folder."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fire_lm.data import vocabularies
from fire_lm.data.identity import vocabulary_fingerprint
from fire_lm.data.on_the_fly import metadata
from fire_lm.data.on_the_fly.source import Source
from fire_lm.data.quiet_tensorflow import seqio
from fire_lm.data.spec import DataSet
from fire_lm.data.suites.tokenization import tokenize
from fire_lm.data.suites.writing import VERSION
from fire_lm.errors import UserError, did_you_mean
from fire_lm.tasks.suites import SUITES, TASKS, Generated, Suite, TextTask

PREFIX = "fire_lm:"  # a colon, because seqio's names cannot contain a slash
_MIXTURES = {PREFIX + suite.name: suite for suite in SUITES.values() if suite.together}
_TASKS = {PREFIX + task.name: task for task in TASKS.values()}
# The tasks and mixtures that `register` has registered, each with its folder and vocabulary.
_registered: dict[str, tuple[seqio.Task | seqio.Mixture, tuple[str, str]]] = {}


def task_or_mixture(name: str, data_dir: str, vocabulary: str) -> seqio.Task | seqio.Mixture:
    """Return the task of a data set in `data_dir`, or the mixture of a suite.

    Both have names of the form `fire_lm:NAME`. The result is not registered, so the tasks of two
    folders never collide.

    Raises:
      UserError: The task does not exist, or the folder does not contain its data set.
    """
    if name not in (names := [*_TASKS, *_MIXTURES]):
        raise UserError(f"there is no task {name}{did_you_mean(name, names)}")
    present = _present_names(data_dir)
    if name in _MIXTURES:
        suite = _MIXTURES[name]
        if missing := [task.name for task in _trained(suite) if task.name not in present]:
            raise UserError(
                f"{data_dir} lacks some data sets of the mixture {name}: {', '.join(missing)}\n"
                f"`{_writing(suite, data_dir)}` writes them"
            )
        return _mixture(suite, data_dir, vocabulary)
    task = _TASKS[name]
    if task.name not in present:
        suite = next(suite for suite in SUITES.values() if task in suite.tasks)
        raise UserError(
            f"{data_dir} has no data set {task.name}\n`{_writing(suite, data_dir)}` writes it"
        )
    return _task(task, data_dir, vocabulary)


def register(data_dir: str, vocabulary: str) -> list[str]:
    """Register with seqio the tasks that have a data set in a folder, and all complete mixtures.

    Tasks and mixtures that an earlier call registered for another folder or vocabulary are
    replaced.

    Returns:
      The names of the registered tasks and mixtures.

    Raises:
      UserError: Other code has registered one of the names.
    """
    present = _present_names(data_dir)
    tasks = {name: task for name, task in _TASKS.items() if task.name in present}
    mixtures = {
        name: suite
        for name, suite in _MIXTURES.items()
        if all(task.name in present for task in _trained(suite))
    }
    origin = (data_dir, vocabulary_fingerprint(vocabulary))
    for name, task in tasks.items():
        _register(name, origin, functools.partial(_task, task, data_dir, vocabulary))
    for name, suite in mixtures.items():
        _register(name, origin, functools.partial(_mixture, suite, data_dir, vocabulary))
    return [*tasks, *mixtures]


def _register(
    name: str, origin: tuple[str, str], make: Callable[[], seqio.Task | seqio.Mixture]
) -> None:
    registry = seqio.MixtureRegistry if name in _MIXTURES else seqio.TaskRegistry
    if name in registry.names():
        ours, of_origin = _registered.get(name, (None, None))
        if registry.get(name) is not ours:
            raise UserError(f"other code has registered a seqio task {name}: rename that task")
        if of_origin == origin:
            return
        registry.remove(name)
    provider = make()
    registry.add_provider(name, provider)
    _registered[name] = provider, origin


def _present_names(data_dir: str) -> set[str]:
    names = set(metadata.data_sets(data_dir))
    return {name for name in TASKS if f"{name}:{VERSION}" in names}


def _trained(suite: Suite) -> list[TextTask]:
    return [task for task in suite.tasks if task.name not in suite.not_trained]


def _task(
    task: TextTask, data_dir: str, vocabulary: str, shuffle_buffer_size: int = 1000
) -> seqio.Task:
    data = DataSet(data_dir, f"{task.name}:{VERSION}")
    feature = seqio.Feature(vocabularies.load(vocabulary), add_eos=True)
    return seqio.Task(
        PREFIX + task.name,
        source=Source(data, *metadata.splits(data)),
        preprocessors=[tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=task.postprocess,
        metric_fns=list(task.metrics),
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _writing(suite: Suite, data_dir: str) -> str:
    """Return the command that writes the data sets of a suite."""
    generated = all(isinstance(task.origin, Generated) for task in suite.tasks)
    source = "" if generated else " --source=FOLDER"
    return f"fire-lm corpus tasks --suite={suite.name} --data_dir={data_dir}{source}"


def _mixture(suite: Suite, data_dir: str, vocabulary: str) -> seqio.Mixture:
    """Return the mixture of a suite, at rates proportional to the numbers of training rows (T5)."""
    # The files of a task are shuffled, and pipeline.py shuffles the rows of the mixture. With a
    # buffer of 1000 examples for each task, the saved position of a reader would be large or, if it
    # were symbolic, take minutes to restore.
    tasks = [_task(task, data_dir, vocabulary, shuffle_buffer_size=1) for task in _trained(suite)]
    rates = [(task, float(task.num_input_examples("train"))) for task in tasks]
    return seqio.Mixture(PREFIX + suite.name, rates)
