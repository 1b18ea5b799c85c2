"""`fire-lm export`, which writes a trained run as a folder for Hugging Face transformers."""

from __future__ import annotations

import argparse
from pathlib import Path

from fire_lm.checkpoints import choose_step, restore_params
from fire_lm.errors import UserError
from fire_lm.interop.export import export
from fire_lm.interop.model_files import has_own_code
from fire_lm.measures.scoring import abstract_params
from fire_lm.runs.run import Run, open_run
from fire_lm.runs.saved import tokenized_of_run
from fire_lm.runs.variants import experiment_at_evaluation
from fire_lm.sharding import MeshShape, make_mesh
from fire_lm.storage import in_bucket


def run(arguments: argparse.Namespace) -> None:
    if in_bucket(arguments.output):
        raise UserError("--output must be a local folder: copy it to the bucket afterwards")
    trained = open_run(arguments.run)
    experiment, variant = experiment_at_evaluation(arguments, trained.workdir)
    model, data = experiment.model, tokenized_of_run(experiment, trained.workdir)
    step = choose_step(trained.workdir, trained.step)
    like = abstract_params(model, make_mesh(MeshShape()))
    params, _ = restore_params(trained.workdir, step, like)
    about = about_run(trained, step, variant)
    exported = export(
        model,
        params,
        data,
        Path(arguments.output),
        about,
        context_length=arguments.context_length,
        trained_length=experiment.train.trained_length,
        configuration=experiment.text(),
        mask_id=experiment.train.data.mask_id,
    )
    needs = "; load it with trust_remote_code=True" if has_own_code(exported) else ""
    print(f"{arguments.output}: {exported.config['architectures'][0]} from step {step}{needs}")


def about_run(run: Run, step: int, variant: str) -> str:
    """Return the first part of a model card: how the model was trained, and its losses in sweeps.

    The losses come from the rows of length sweeps for this step and variant.
    """
    changed = f" as {variant}" if variant else ""
    kind = "decoder" if run.model.causal else "encoder"
    lengths = run.settings.lengths_in_words
    # Only `fire-lm import` writes a checkpoint with step 0.
    origin = f"trained by fire_lm at length {lengths}" if step else "imported"
    lines = [
        f"# {run.name}, step {step}{changed}",
        "",
        f"A {kind} with the positional encoding {run.encoding}, {origin}.",
    ]
    rows = [
        row
        for row in run.rows().losses
        if (row.step, row.variant) == (step, variant) and row.tokens
    ]
    if rows:
        lines += ["", "| text | split | construction | protocol | length | nats per token |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [
            f"| {row.dataset} | {row.split} | {row.construction} | {row.protocol} | {row.length} "
            f"| {row.nll:.4f} |"
            for row in rows
        ]
    return "\n".join(lines)
