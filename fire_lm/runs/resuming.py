"""Whether a run directory, or the run that INIT_FROM names, fits the experiment at hand."""

from __future__ import annotations

from fire_lm import config as gin
from fire_lm import models
from fire_lm.checkpoints import available_steps
from fire_lm.errors import UserError
from fire_lm.runs.saved import damaged, model_of_run, newest_config


def check_same_experiment(config: gin.Config, workdir: str, allow_change: bool) -> None:
    """Refuses a workdir of another experiment; training longer is the same experiment."""
    saved = newest_config(workdir)
    if saved is None:
        return
    if allow_change:
        check_same_encoding(config, workdir)
        return
    try:
        old = saved.read_bytes().decode("utf-8-sig")
        differences = gin.differences(old, config, root="pretrain")
    except UnicodeError:
        raise damaged(saved, "it is not UTF-8 text") from None
    except UserError as error:
        raise damaged(saved, str(error)) from error
    if lacking := [str(one.name) for one in differences if one.old is gin.ABSENT]:
        raise damaged(saved, f"it does not say {', '.join(lacking[:3])}")
    changed = [
        str(difference)
        for difference in differences
        if difference.name not in ("TRAIN_STEPS", "PRETRAINING_STEPS", "pretrain.train_steps")
        or difference.new <= difference.old
    ]
    if changed:
        raise UserError(
            f"{workdir} holds another experiment ({saved.name}): {'; '.join(changed)}\n"
            "choose another --workdir, or add --allow_config_change to go on in this one"
        )


def check_same_encoding(config: gin.Config, workdir: str) -> None:
    """No setting makes the state of one encoding that of another, even under the same names."""
    old, new = (model_of_run(workdir), config.call("build_decoder"))
    names = [models.encoding_names(model) for model in (old, new)]
    if names[0] != names[1] and available_steps(workdir):
        raise UserError(
            f"{workdir} was trained with {names[0]}, this run has {names[1]}: it cannot go on\n"
            f"to finetune across, choose another --workdir and add --gin.INIT_FROM={workdir}"
        )


def compare_with_source(model: models.Decoder, trained: models.Decoder, source: str) -> str:
    """How the model differs from that of the run whose parameters it takes (INIT_FROM).

    Parameters may mean something else under other settings: FIRE's threshold is a learned
    multiple of init_L, by default a quarter of the training length.
    """
    changed = [
        f"{name} {old} -> {new}" for name, (old, new) in models.changes(trained, model).items()
    ]
    return f"model against {source}: {'; '.join(changed) or 'the same'}"
