"""Checks of an experiment that no single class can make."""

from __future__ import annotations

from fire_lm import measures
from fire_lm.checkpoints import split_run
from fire_lm.errors import UserError
from fire_lm.experiment.experiment import Experiment
from fire_lm.storage import in_bucket, present
from fire_lm.training import Pretraining


def check_blocks(experiment: Experiment) -> None:
    """Reject a mixture or construction of `TextData` that has no effect on token blocks."""
    idle = experiment.idle("TextData")
    where, mixture = idle.get("mixture", ("", ()))
    if mixture:
        raise UserError(
            f"{where}: TextData.mixture has no effect, because token blocks contain one data set\n"
            "remove it, or omit configs/data/blocks.gin to tokenise the text on the fly"
        )
    macro = experiment.macro("CONSTRUCTION")
    where, construction = idle.get("construction", ("", macro))
    if construction != macro:
        raise UserError(
            f"{where}: TextData.construction = {construction!r} has no effect on token blocks\n"
            "set CONSTRUCTION instead, which applies to both TextData and Blocks"
        )


def check_positions(run: Pretraining) -> None:
    """Reject packed rows if their documents would get only the smallest of a row's positions."""
    if run.data.packed and run.model.resampling.spread_over_row:
        raise UserError(
            f"{type(run.model.resampling).__name__} draws positions for whole rows, not for the "
            "documents of packed rows: set another CONSTRUCTION, or omit build_decoder.resampling"
        )


def check_settings(experiment: Experiment) -> None:
    """Reject settings that are invalid for every run and sweep, even in a dry run."""
    if experiment.macro("DATA_DIR") == "":
        raise UserError("DATA_DIR is empty: set it to the folder of the data set")
    init_from = str(experiment.values(experiment.kind)["init_from"])
    if not (in_bucket(init_from) or present(init_from)):
        split_run(init_from)
    scoring = experiment.values("length_sweep")
    if set(measures.CHECKED) <= set(scoring):
        measures.check_scoring(**{name: scoring[name] for name in measures.CHECKED})
