"""Reading of the configuration and the arrays of a Hugging Face model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fire_lm.errors import UserError

_ONE, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of a folder's `config.json`.

    Raises:
      UserError: The file is missing or is not a JSON object.
    """
    path = folder / "config.json"
    try:
        header = json.loads(path.read_text())
    except OSError:
        raise UserError(
            f"--from: {folder} is not a Hugging Face model folder: it has no config.json"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise UserError(f"{path} is not a JSON object")
    return header


class Weights:
    """The arrays of a Hugging Face model folder, stored in one or several safetensors files.

    `take` reads an array, and `check_all_taken` reports arrays that were not read.

    Raises:
      UserError: The package safetensors is not installed, or a file is missing or damaged.
    """

    def __init__(self, folder: Path):
        self._folder, self._taken = folder, set[str]()
        self._files: dict[str, Any] = {}
        for file in _files(folder):
            opened = _opened(folder / file)
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the array `name`, which must have the given shape, as float32.

        Raises:
          UserError: The array is missing, or it has another shape or an unsupported data type.
        """
        if name not in self._files:
            raise UserError(f"{self._folder}: the tensor {name} is missing from the weights")
        self._taken.add(name)
        stored_shape = tuple(self._files[name].get_slice(name).get_shape())
        if stored_shape != shape:
            raise UserError(
                f"{self._folder}: the tensor {name} has the shape {list(stored_shape)}, but "
                f"config.json implies {list(shape)}"
            )
        try:
            return np.asarray(self._files[name].get_tensor(name), np.float32)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{self._folder}: NumPy does not support the data type of the tensor {name} "
                f"({error}): save the model in float32"
            ) from error

    def take_tied(self, name: str, output: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the embedding `name`, whose transpose is the output matrix.

        Some programs also store the output matrix, under the name `output`, or store only that.

        Raises:
          UserError: See `take`, or the two arrays differ.
        """
        if output not in self:
            return self.take(name, shape)
        matrix = self.take(output, shape)
        if name in self and not np.array_equal(self.take(name, shape), matrix):
            raise UserError(
                f"{self._folder}: the tensors {name} and {output} differ, but fire_lm supports "
                "only models whose output matrix is tied to their embedding"
            )
        return matrix

    def check_all_taken(self, ignored: tuple[str, ...] = ()) -> None:
        """Raise UserError if `take` has not read every array.

        Arrays whose names end in one of `ignored` are no weights, and need not be read.
        """
        left = [name for name in self._files if name not in self._taken]
        left = [name for name in left if not name.endswith(ignored)]
        if left:
            raise UserError(
                f"{self._folder}: the tensor {left[0]} does not belong to this model"
                + (f" (one of {len(left)} such tensors)" if left[1:] else "")
            )


def _files(folder: Path) -> list[str]:
    if (folder / _ONE).exists():
        return [_ONE]
    try:
        index = json.loads((folder / _INDEX).read_text())
        return sorted(set(index["weight_map"].values()))
    except OSError:
        raise UserError(f"--from: {folder} has no {_ONE} and no {_INDEX}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / _INDEX} is not an index of safetensors files") from error


def _opened(path: Path) -> Any:
    package = safetensors()
    try:
        return package.safe_open(path, framework="numpy")
    except (package.SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a safetensors file: {error}") from error


def safetensors() -> Any:
    """Return the package safetensors with its module `numpy`.

    Raises:
      UserError: The package is not installed.
    """
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise UserError(
            "safetensors is not installed: run `pip install -e '.[hf]'` in the checkout"
        ) from error
    return safetensors
