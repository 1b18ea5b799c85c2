"""Writing of the files that `AutoModelForCausalLM.from_pretrained` loads.

Importing this module requires only JAX and Flax.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fire_lm.errors import UserError
from fire_lm.interop.custom import custom
from fire_lm.interop.stock import Stock, stock
from fire_lm.interop.weights import safetensors
from fire_lm.models import Decoder

_CODE = ("configuration_fire_lm.py", "modeling_fire_lm.py")


def write_model(
    model: Decoder,
    params: Any,
    length: int,
    end: int,
    folder: Path,
    more: Mapping[str, Any] | None = None,
) -> Stock:
    """Write config.json, model.safetensors and, if no stock class is used, the model's own code.

    Args:
      length: The number of tokens to support. It affects the size of exported position tables that
        are not learned, and encodings that depend on the input length.
      end: The id of the end-of-document token.
      folder: The destination, which is created if it does not exist.
      more: Additional fields of config.json, which transformers ignores.

    Returns:
      The exported configuration and arrays.

    Raises:
      UserError: The model resamples positions in a way that depends on the length of the input, its
        encoding cannot be exported, or safetensors is not installed.
    """
    save_file = safetensors().numpy.save_file
    check_plain_positions(model)
    form = stock(model, params, length) or custom(model, params, length)
    config = {
        **form.config,
        **({"bos_token_id": 0} if model.causal else {}),
        "eos_token_id": end,
        "pad_token_id": 0,
        "vocab_size": model.vocab_size,
        "initializer_range": model.size.init_std,
        "dtype": "float32",
        **(more or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if has_own_code(form):
        for name in _CODE:
            with resources.as_file(resources.files("fire_lm.interop") / "hub" / name) as path:
                shutil.copyfile(path, folder / name)
    whole = {name: np.array(array, np.float32, order="C") for name, array in form.arrays.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    # safetensors lets only the owner read its file, whatever the umask.
    shutil.copymode(folder / "config.json", folder / "model.safetensors")
    return form


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, and rename it to `folder` on success.

    If an error occurs, the temporary folder is removed. If the process is killed, the next export
    to `folder` removes the temporary folder.

    Raises:
      UserError: `folder` is a file or is not empty, or its parent is not writable.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output {folder} exists and is not an empty folder: choose another")
    unfinished = folder.parent / f".{folder.name}.unfinished"
    try:
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to --output {folder}: {error.strerror}") from error
    try:
        yield unfinished
        unfinished.replace(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def has_own_code(form: Stock) -> bool:
    return "auto_map" in form.config


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def check_plain_positions(model: Decoder) -> None:
    """Raise UserError unless the model is evaluated at the positions 0, 1, 2, ..."""
    if not np.array_equal(model.resampling.evaluation_positions(8), np.arange(8)[None]):
        raise UserError(
            "this model is evaluated at resampled positions, which depend on the input length and "
            "cannot be exported\nto export the model with plain positions, add "
            "--gin_file=configs/resampling/plain.gin"
        )
