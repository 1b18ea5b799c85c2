"""The experiment of a run, with changes to its model that apply only at evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from etils import epath

from fire_lm import models
from fire_lm.errors import UserError
from fire_lm.experiment import Experiment, GinText, Statements, read_gin, resolve
from fire_lm.experiment.own_measure import split_measure
from fire_lm.models import at_longest_length
from fire_lm.runs.inputs import located_text, note_changed_modules
from fire_lm.runs.saved import saved_run


def experiment_at_evaluation(
    arguments: argparse.Namespace,
    workdir: epath.Path,
    files: Sequence[str] = (),
    bindings: Sequence[str] = (),
) -> tuple[Experiment, str]:
    """Return the experiment of a run with the requested changes, and a label for the changes.

    The changes consist of the gin files and bindings in the command-line `arguments`, followed by
    `files` and `bindings`. The paths of the run are those at which its inputs are found now; see
    `fire_lm.runs.inputs`.

    Raises:
      UserError: The configuration is invalid, `variant_of` rejects a change, or the command does
        not use a binding on its command line.
    """
    saved = saved_run(workdir)
    trained = saved.experiment
    note_changed_modules(workdir)
    stated = read_gin(
        [*arguments.gin_file, *files], [*arguments.bindings, *bindings], arguments.gin_search_paths
    )
    module, measure = split_measure(getattr(arguments, "measure", None))
    located = located_text(trained, workdir)
    if not (stated.statements or stated.imports or arguments.imports or measure or located.text):
        return trained, ""
    experiment = resolve(
        stated.preceded_by([GinText(str(saved.path), saved.text), located]),
        [*arguments.imports, *([module] if module else [])],
        more_roots=[measure] if measure else [],
    )
    experiment.check_used(arguments.verb, uses_of(arguments.verb, stated, experiment, measure))
    variant = variant_of(trained, experiment, workdir)
    return with_longest_length(experiment, trained) if variant else experiment, variant


def uses_of(
    verb: str, stated: Statements, experiment: Experiment, measure: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return what a command needs of the experiment of a run: the parameters of each root.

    `stated` is what the command's gin files and bindings state, and `measure` is the class that
    --measure names, if it is given. An empty tuple stands for all parameters.
    """
    model: dict[str, tuple[str, ...]] = {"build_decoder": ()}
    if measure:
        return model | {measure: (), experiment.kind: ("data", "train_length")}
    if verb == "sweep":
        return model | {"length_sweep": ()}
    if "evaluate" in stated.configurables:  # `evaluate` or `preflight`
        return model | {"evaluate": (), experiment.kind: ("train_length",)}
    if verb == "evaluate":
        return model | {experiment.kind: ("data",), "length_sweep": ("lengths",)}
    return model | {experiment.kind: ("data",)}


def variant_of(trained: Experiment, changed: Experiment, workdir: epath.Path) -> str:
    """Return the label that tables show for the changes to the model since training.

    Raises:
      UserError: The encoding has changed, or a change is not allowed at evaluation.
    """
    if trained.label != changed.label:
        raise UserError(
            f"{workdir} was trained as {trained.label}, and tables show it under this name\nto "
            "change its encoding at evaluation, add bindings such as "
            "--gin.RoPE.scaling='@YaRN()' instead of a file from configs/positions"
        )
    try:
        return models.variant(trained.model, changed.model)
    except UserError as error:
        raise UserError(f"{workdir}: {error}") from error


def with_longest_length(experiment: Experiment, trained: Experiment) -> Experiment:
    """Return the experiment with the training length on which changes at evaluation are based.

    It differs from `trained` by changes to the model that apply only at evaluation; see
    `at_longest_length`.
    """
    longest = at_longest_length(trained.model, trained.train.trained_length)
    length = longest.encodings[0].train_length
    if length == trained.model.encodings[0].train_length:
        return experiment
    return experiment.with_values(
        {"build_decoder.train_length": length}, "the run's training length"
    )
