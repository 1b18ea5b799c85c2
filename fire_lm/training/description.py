"""The description that a run prints before it starts: parameters, mesh, tokens and FLOPs."""

from __future__ import annotations

import math

import jax

from fire_lm import sharding
from fire_lm.attention import choose_implementation
from fire_lm.console import columns
from fire_lm.hardware.flops import FLOPS_CONVENTION
from fire_lm.models import COLUMNS, encoding_names, layer_rows
from fire_lm.models import lengths as lengths_of
from fire_lm.sharding import POSITION
from fire_lm.training.compile import loops_over_layers
from fire_lm.training.pretraining import Pretraining
from fire_lm.training.summary import bytes_per_device, count_parameters


def describe(run: Pretraining) -> str:
    """Return the table printed at the start of a run, without allocating arrays.

    Raises:
      UserError: The mesh shape is invalid, the batch cannot be split evenly over the mesh, or a
        training step cannot use the optimizer.
    """
    mesh = sharding.abstract_mesh(run.mesh)
    run.check_batches(mesh)
    run.check_rows(mesh)
    run.check_optimizer()
    for tracker in run.trackers:
        tracker.check()
    model, state = run.model, sharding.with_shardings(run.abstract_state(), mesh)
    counts = count_parameters(state.params)
    encoding = counts.pop("encoding", 0)
    non_embedding = sum(counts.values()) - counts["embedding"]
    matrices = sum(
        math.prod(leaf.shape)
        for path, leaf in sharding.leaves_by_path(state.params["layers"]).items()
        if path.endswith("kernel") and not POSITION.search(path)
    )
    width = max(len(name) for name in counts) + 2
    rows = [f"  {name:<{width}}{count:>13,}" for name, count in sorted(counts.items())]
    attention = choose_implementation(model.attention, run.train_length)
    looped = loops_over_layers(model, jax.default_backend())
    shared = ", shared by all layers" if model.share_position and encoding else ""
    microbatches = f" in {run.microbatches} microbatches" if run.microbatches > 1 else ""
    layers = layer_rows(model, state.params)
    constant = run.lengths.constant
    up_to = "up to " if constant and len(run.row_lengths()) > 1 else ""
    mean = "" if constant else ", the mean over all steps"
    return "\n".join(
        [
            "parameters",
            *rows,
            f"  non-embedding {non_embedding / 1e6:.1f}M ({matrices / 1e6:.1f}M in matrices)",
            f"  encoding {encoding_names(model)} {encoding:,}, listed separately{shared}",
            *(f"  {line}" for line in (columns([list(COLUMNS), *layers]) if layers else [])),
            f"mesh {' x '.join(f'{axis}={size}' for axis, size in mesh.shape.items())}"
            f" = {math.prod(mesh.shape.values())} devices; state "
            f"{bytes_per_device(state) / 2**20:.1f} MiB per device",
            f"attention {attention} at length {run.train_length}; compute in {model.dtype.name}; "
            f"remat {model.remat}; layers {'in a loop' if looped else 'unrolled'}",
            f"batch {run.batch_size} x {run.train_length} = {up_to}{run.tokens_per_step:,} tokens "
            f"per step{microbatches}, {run.train_steps:,} steps, "
            f"{up_to}{run.tokens_per_step * run.train_steps:.4g} tokens",
            f"FLOPs per token {run.flops_per_token:.4g}{mean} ({FLOPS_CONVENTION})",
            *([] if constant else length_lines(run)),
        ]
    )


def length_lines(run: Pretraining) -> list[str]:
    """Return a line for each phase of a length schedule, and one for what encodings keep."""
    lines = []
    for phase in run.lengths.phases:
        batches = " or ".join(
            f"{run.rows_per_step(n)} x {n} ({choose_implementation(run.model.attention, n)} "
            f"attention, {run.flops_per_token_at(n):.4g} FLOPs per token)"
            for n in phase.lengths
        )
        steps = f"steps {phase.start + 1:,} to {phase.stop:,}" if phase.steps else "not reached"
        drawn = "one of " if len(phase.lengths) > 1 else ""
        lines.append(f"  {steps}: {drawn}{batches}")
    kept = ", ".join(f"{name} {value}" for name, value in lengths_of(run.model).items())
    return [
        f"lengths {run.lengths}; every batch is cut from rows of {run.lengths.longest} tokens",
        *lines,
        f"  encodings keep for the whole run: {kept}",
    ]
