"""The biases and attention scores of a report's runs, computed from their checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from etils import epath

from fire_lm.checkpoints import available_steps
from fire_lm.data import TextSource, scoring_text
from fire_lm.errors import FireLMError, RunFailed
from fire_lm.experiment import Experiment
from fire_lm.measures.probes import attention_scores, interpolated, learned_biases
from fire_lm.measures.scoring import read_params
from fire_lm.models import at_longest_length, variant
from fire_lm.results.folder import Results
from fire_lm.results.tables import TrainingPoint
from fire_lm.sharding import MeshShape, make_mesh

# The number of arms of which a report computes and draws biases, and likewise attention scores and
# learned scalars: a picture of one arm takes seconds, and nobody reads hundreds of them.
MOST_DRAWN = 24


def probed_arms(
    places: Mapping[str, epath.Path],
    experiments: Mapping[str, Experiment],
    results: Results,
    before: Results,
) -> list[Results]:
    """Return the biases and attention scores of arms.

    These are the biases of the first `MOST_DRAWN` arms that learn them, the scores of the first
    `MOST_DRAWN` arms that support position interpolation, and all that `before`, the results of an
    earlier report, has. `places` and `experiments` are those of the runs, by name.
    """
    probed: list[Results] = []
    for runs in results.arms().values():
        wanted = {
            kind
            for kind in ("biases", "scores")
            if sum(bool(getattr(results_of_arm, kind)) for results_of_arm in probed) < MOST_DRAWN
        }
        for run in (facts.run for facts in runs):  # the first that has a readable checkpoint
            try:
                probed.append(_probed(run, places[run], experiments[run], results, before, wanted))
                break
            except FireLMError as error:
                print(f"skipping biases and attention scores of {run}: {error}", flush=True)
    return probed


def _probed(
    run: str,
    workdir: epath.Path,
    experiment: Experiment,
    results: Results,
    before: Results,
    wanted: Collection[str],
) -> Results:
    """Return the biases and attention scores of a run's newest checkpoint scored by a sweep.

    If no checkpoint has been scored, the newest checkpoint is used.

    Raises:
      FireLMError: There is no checkpoint, it is damaged, or the text is missing.
    """
    trained_at = experiment.train.trained_length
    model = at_longest_length(experiment.model, trained_at)
    learns = next(facts.encoding_parameters for facts in results.runs if facts.run == run) > 0
    # Attention scores require plain text, which runs that were trained on a task do not have.
    changed = None if experiment.train.data.not_text else interpolated(model)
    if not (learns or changed):
        return Results()
    steps = available_steps(workdir)
    scored = {row.step for row in results.losses if row.run == run}
    step = max(scored & set(steps) or steps, default=None)
    if step is None:
        raise RunFailed("the run has no checkpoint")
    known = Results(
        biases=[row for row in before.biases if (row.run, row.step) == (run, step)],
        scores=[row for row in before.scores if (row.run, row.step) == (run, step)],
    )
    if (known.biases or known.scores) and _trained(before, run) <= _trained(results, run):
        return known
    learns, changed = learns and "biases" in wanted, changed if "scores" in wanted else None
    if not (learns or changed):
        return Results()
    print(f"computing biases and attention scores of {run}@{step}", flush=True)
    names: dict[str, Any] = {"run": run, "encoding": experiment.label, "step": step}
    params = read_params(str(workdir), step, model, make_mesh(MeshShape()))
    biases = learned_biases(model, params, **names) if learns else []
    scores = []
    if changed:
        text = cast(TextSource, experiment.train.data).parts[0]
        tokens_T = scoring_text(text, length=2 * trained_at, num_sequences=1).targets[0]
        for probed_model in (model, changed):
            named = {**names, "variant": variant(model, probed_model)}
            scores += attention_scores(probed_model, params, tokens_T, **named)
    return Results(biases=biases, scores=scores)


def _trained(results: Results, run: str) -> set[TrainingPoint]:
    """Return the training points of a run, which distinguish it from runs of the same name."""
    return {point for point in results.training if point.run == run}
