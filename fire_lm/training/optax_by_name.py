"""Optax's transformations and schedules under their gin names, such as `@optax.adafactor()`.

Their parameters and defaults are those of Optax. A parameter that takes another transformation, a
schedule or a mask is bound to a gin reference, as in `optax.lion.mask = @decay_mask`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import optax
import optax.contrib

from fire_lm.errors import UserError, first_line
from fire_lm.sharding import POSITION, path_name

_RATE = ("learning_rate", "step_size_fn")  # `step_size_fn` belongs to `scale_by_schedule`
_TRANSFORMATIONS = (optax.GradientTransformation, optax.GradientTransformationExtraArgs)


@dataclasses.dataclass(frozen=True)
class Optax:
    """An Optax transformation, with the learning rate passed to it if any, as an `Optimizer`."""

    transformation: optax.GradientTransformation
    learning_rate: float | optax.Schedule | None = None

    def build(self, train_steps: int) -> optax.GradientTransformation:
        # Gin passes the number of steps to schedules: decay_steps = %TRAIN_STEPS.
        return self.transformation

    def schedule(self, train_steps: int) -> optax.Schedule | None:
        if self.learning_rate is None or callable(self.learning_rate):
            return self.learning_rate
        return optax.constant_schedule(self.learning_rate)


def muon_dimensions(params: Any) -> Any:
    """Return the axes of each kernel that form a matrix, for `optax.contrib.muon`.

    The kernels of all layers are stacked along their first axis. Muon orthogonalises the matrix of
    each layer separately; the heads of a layer form one matrix. The result is None for embeddings,
    biases, norms, gates, the kernels of your own mixers, and all parameters of encodings: Muon
    updates these parameters with AdamW.
    """

    def dimensions(path: Any, _: Any) -> optax.contrib.MuonDimensionNumbers | None:
        name = path_name(path)
        owner, _, kind = name.rpartition("/")
        axes = _MATRICES.get(owner.rpartition("/")[2])
        if kind != "kernel" or POSITION.search(name) or axes is None:
            return None
        return optax.contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(dimensions, params)


# The axes of a layer's kernel that are contracted with the input, and the axes of the output.
_MATRICES = {
    **dict.fromkeys(("query", "key", "value"), ((1,), (2, 3))),  # [L, D, N, H]
    "attention_out": ((1, 2), (3,)),  # [L, N, H, D]
    **dict.fromkeys(("mlp_in", "mlp_out"), ((1,), (2,))),  # [L, D, F] and [L, F, D]
}


@functools.cache
def optax_configurables() -> Mapping[str, Callable[..., Any]]:
    """Return the transformations and schedules of Optax that gin can bind, keyed by gin name."""
    return {
        f"{module.__name__}.{name}": _configurable(f"{module.__name__}.{name}", target)
        for module in (optax, optax.contrib)
        for name, target in _named(module)
    }


def _named(module: types.ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, target in sorted(vars(module).items()):
        if name.startswith("_") or not inspect.isfunction(target):
            continue
        signature = inspect.signature(target)
        kinds = {parameter.kind for parameter in signature.parameters.values()}
        if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue  # gin binds only named parameters
        if signature.return_annotation in (*_TRANSFORMATIONS, optax.Schedule):
            yield name, target


def _configurable(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `target` so that gin can check its arguments and invalid values raise UserError."""
    signature = inspect.signature(target)
    makes_schedule = signature.return_annotation == optax.Schedule

    @functools.wraps(target)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        values = {key: _unwrapped(value) for key, value in given.arguments.items()}
        try:
            made_by_optax = target(**values)
        except (TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{name}: {first_line(error)}") from error
        if makes_schedule:
            return made_by_optax
        rates = [values[key] for key in _RATE if key in values]
        wrapped = (x for x in given.arguments.values() if isinstance(x, Optax))
        rates += [x.learning_rate for x in wrapped if x.learning_rate is not None]
        return Optax(_with_extra_arguments(made_by_optax), next(iter(rates), None))

    made.__annotations__ = {
        key: _hint(parameter.annotation) for key, parameter in signature.parameters.items()
    }
    made.__annotations__["return"] = collections.abc.Callable if makes_schedule else Optax
    return made


def _with_extra_arguments(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Return a transformation that ignores the extra arguments that its update does not name."""
    if not isinstance(transformation, optax.GradientTransformationExtraArgs):
        return transformation  # `optax.chain` passes it no extra arguments
    known = inspect.signature(transformation.update).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        return transformation

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        named = {name: value for name, value in extra.items() if name in known}
        return transformation.update(updates, state, params, **named)

    return optax.GradientTransformationExtraArgs(transformation.init, update)


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_unwrapped, value))
    return value.transformation if isinstance(value, Optax) else value


def _hint(annotation: Any) -> Any:
    """Convert a type annotation in Optax into one that gin can check, or into Any."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    numeric = float in members  # Optax annotates numbers as unions with arrays or bool
    kept: list[Any] = []
    for member in members:
        if member in _TRANSFORMATIONS:
            kept.append(Optax)
        elif (typing.get_origin(member) or member) is collections.abc.Callable:
            kept.append(Callable[..., Any])
        elif member in (int, float, str, type(None)) or typing.get_origin(member) is typing.Literal:
            kept.append(member)
        elif member is bool and not numeric:
            kept.append(member)
        elif not numeric:
            return Any
    return functools.reduce(operator.or_, kept) if kept else Any
