"""Groups runs that differ only in their seed into arms, and names the arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fire_lm.config import Config
from fire_lm.results.folder import Setting

# Prefixes of the names of settings that change no result, or that state where something is rather
# than what it is.
_IDLE = (
    *("pretrain.seed", "pretrain.log_every", "Checkpointing.", "Watchdog.", "MeshShape."),
    *("build_decoder.remat", "build_decoder.scan_layers", "build_decoder.attention"),
    *("TextData.data_dir", "Blocks.path"),
)


def differing(configs: dict[str, Config]) -> list[Setting]:
    """Return the settings that differ between the runs that have them, as gin would print them.

    Settings are compared by parameter, because one run may bind a parameter directly and another
    by a macro.
    """
    leaves = {
        run: {str(key): repr(value) for key, (_, value) in config.leaves("pretrain").items()}
        for run, config in configs.items()
    }
    names = dict.fromkeys(name for values in leaves.values() for name in values)
    return [
        Setting(run, name, values[name])
        for name in names
        if len({values[name] for values in leaves.values() if name in values}) > 1
        for run, values in leaves.items()
        if name in values
    ]


def arm_names(configs: dict[str, Config], settings: Sequence[Setting]) -> dict[str, str]:
    """Name each run's arm: its encoding and, if runs of one encoding differ, by what.

    Two runs with the same seed, such as a run and its copy, are not two samples, so their names
    distinguish them.
    """
    own: dict[str, dict[str, str]] = {run: {} for run in configs}
    for setting in settings:
        if not setting.name.startswith(_IDLE):
            own[setting.run][setting.name] = _what(setting)
    encodings = {run: str(config.macro("ENCODING")) for run, config in configs.items()}
    names = {}
    for run, encoding in encodings.items():
        same = [values for other, values in own.items() if encodings[other] == encoding]
        # One macro may set several parameters: TRAIN_LENGTH sets that of the run and of the model.
        apart = dict.fromkeys(
            f"{name.rpartition('.')[2]} {value}"
            for name, value in own[run].items()
            if len({values.get(name) for values in same}) > 1
        )
        names[run] = f"{encoding}, {', '.join(apart)}" if apart else encoding
    draws = Counter((names[run], config.call("pretrain").seed) for run, config in configs.items())
    repeated = {name for (name, _), count in draws.items() if count > 1}
    return {run: f"{name} of {run}" if name in repeated else name for run, name in names.items()}


def _what(setting: Setting) -> str:
    """Return the value of a setting; of INIT_FROM, which seeds differ in, only if it is set."""
    if setting.name == "pretrain.init_from":
        return "nothing" if setting.value == "''" else "a run"
    return setting.value
