"""The values of an experiment, which other code takes instead of a configuration."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

from fire_lm.config import Config, Scoped, Statement, check_needed, same
from fire_lm.measures import LengthSweep
from fire_lm.measures.task_scores import TextEvaluation
from fire_lm.models import Decoder, build_encoder
from fire_lm.training import Pretraining

_MODEL, _LENGTH = "build_decoder", "build_decoder.train_length"

Kind = Literal["pretrain", "finetune"]


class InputPath(NamedTuple):
    """A path in an experiment.

    Attributes:
      name: The macro or parameter with which a user would bind the path.
      kind: "vocabulary", "data", "text" or "run"; see `fire_lm.runs.inputs`.
      value: The path, or a tuple of paths.
    """

    name: str
    kind: str
    value: Any


class Absent:
    """The value of a parameter that only the other of two experiments has."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT = Absent()


class Difference(NamedTuple):
    """A value that differs between two experiments.

    `name` is the name with which a user would bind the value.
    """

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.old!r} -> {self.new!r}"


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """What gin files and bindings describe, as values.

    A value is made when it is first needed, because a command may lack what another one needs: a
    value may raise UserError for a setting that is missing or invalid. In values that are shown
    instead of made, references are text, such as '@FIRE'.

    Attributes:
      kind: The kind of training: "pretrain" or "finetune".
    """

    kind: Kind
    _config: Config = dataclasses.field(repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Experiment) and self.text() == other.text()

    @functools.cached_property
    def train(self) -> Pretraining:
        """The settings of the training run."""
        run: Pretraining = self._config.call(self.kind)
        return run

    @functools.cached_property
    def model(self) -> Decoder:
        return self.model_with()

    @functools.cached_property
    def sweep(self) -> LengthSweep:
        """The length sweep of a pretraining run on text."""
        sweep: LengthSweep = self._config.call("length_sweep")
        return sweep

    @functools.cached_property
    def task(self) -> TextEvaluation:
        """The evaluation on a text-to-text task, if gin files describe one."""
        task: TextEvaluation = self._config.call("evaluate")
        return task

    def measure(self, name: str) -> Any:
        """Return the measure that --measure names, by the name of its class."""
        return self._config.call(name)

    def text(self, *roots: str) -> str:
        """Return gin text from which an equal experiment is loaded without other files.

        With `roots`, it describes only what these configurables reach, such as `build_decoder`.
        """
        return self._config.text(*roots)

    def check_complete(self) -> None:
        """Raise UserError if a setting of the model has no value."""
        self._config.check_complete(_MODEL)

    @property
    def label(self) -> str:
        """The name that tables show for the encoding."""
        return str(self.macro("ENCODING"))

    @property
    def bindings(self) -> dict[str, str]:
        """The bindings in files and on the command line as gin text, without defaults."""
        return {str(item.key): str(item.node) for item in self._config.bindings.statements}

    @property
    def imports(self) -> tuple[str, ...]:
        """The names of the user's modules that are imported."""
        return self._config.bindings.imports

    @functools.cached_property
    def settings(self) -> dict[str, tuple[str, Any]]:
        """Every value on which training depends, by parameter, with the name that binds it."""
        bindings, run = self._config.bindings, Scoped((), self.kind)
        reached = bindings.reach_from(
            run.target(reference)
            for statement, reference in bindings.references(run)
            if statement.key.parameter not in Pretraining.observing
        )
        owners = {str(at.key("")) for at in (run, *reached)}
        observing = {str(run.key(name)) for name in Pretraining.observing}
        return {
            name: leaf
            for name, leaf in self._leaves(self.kind).items()
            if f"{_owner(name)}." in owners and name not in observing
        }

    @functools.cached_property
    def paths(self) -> tuple[InputPath, ...]:
        """The paths that are set; classes list their parameters that are paths in `paths`."""
        bindings, paths = self._config.bindings, []
        for at in bindings.reach():
            kinds = getattr(bindings.configurables[at.name], "paths", {})
            for name, (statement, value) in self._config.arguments(at).items():
                if (
                    name in kinds
                    and statement is not None
                    and value
                    and isinstance(value, str | tuple)
                ):
                    paths.append(InputPath(str(bindings.source(statement).key), kinds[name], value))
        return tuple(paths)

    def macro(self, name: str) -> Any | None:
        """Return the value of a macro, or None if it is not set."""
        return self._config.macro(name)

    def values(self, name: str) -> dict[str, Any]:
        """Return the parameters of a configurable that commands call, or {} for any other."""
        return self._config.values(name) if name in self._config.bindings.roots else {}

    def idle(self, name: str) -> dict[str, tuple[str, Any]]:
        """Return the bindings of a configurable that no command uses, each with its location."""
        return self._config.idle(name)

    def model_with(self, **arguments: Any) -> Decoder:
        """Return the model with other arguments, which take precedence over those in files."""
        decoder: Decoder = self._config.call_scoped(Scoped((), _MODEL), **arguments)
        return build_encoder(decoder) if "build_encoder.decoder" in self.bindings else decoder

    def with_values(self, values: Mapping[str, Any], where: str) -> Experiment:
        """Return the experiment with other values of macros and parameters.

        In messages, `where` describes the origin of the values. Without values, the result is the
        experiment itself.
        """
        if not values:
            return self
        return Experiment(self.kind, self._config.with_values(values, where))

    def differences_from(
        self, old: Experiment, of: Callable[[str], bool] = lambda parameter: True
    ) -> list[Difference]:
        """Return the values on which training depends that differ from those of `old`.

        Only the parameters for which `of` returns True are compared.

        Macros are expanded, so moving a value into a macro makes no difference. For two different
        references, only the references are listed, not the parameters of their configurables.
        """
        before, now = old.settings, self.settings
        both = {_owner(name) for name in before} & {_owner(name) for name in now}
        changed = {}
        for parameter in filter(lambda name: _owner(name) in both and of(name), {**now, **before}):
            name, new = now.get(parameter, (parameter, ABSENT))
            _, was = before.get(parameter, ("", ABSENT))
            if not same(was, new):
                changed[name, repr(was), repr(new)] = Difference(name, was, new)
        return list(changed.values())

    # The lengths that a model keeps when a run at another length continues its training. Learned
    # parameters are meaningful only relative to the length at which they were trained. FIRE's
    # threshold is a learned multiple of `init_L`, which is a quarter of the training length by
    # default. The interpolation of ALiBi, the scalings of RoPE, and log-n scaling are also relative
    # to the training length. A run that starts from another run therefore takes over every value
    # that would otherwise follow from its own TRAIN_LENGTH.

    @functools.cached_property
    def open_lengths(self) -> tuple[str, ...]:
        """The parameters of the model whose values follow from TRAIN_LENGTH.

        Each class declares in `length_fields` the parameters that replace a value derived from
        `build_decoder.train_length`. Those that the user binds do not follow, nor does this length
        unless a file binds it to TRAIN_LENGTH, as configs/model.gin does.
        """
        bindings, names = self._config.bindings, []
        for at in bindings.reach(_MODEL):
            bound = bindings.bound(at)
            fields = getattr(bindings.configurables[at.name], "length_fields", ())
            names += [str(at.key(field)) for field in fields if field not in bound]
            if at.name == _MODEL and self._follows(bound.get("train_length")):
                names.append(_LENGTH)
        return tuple(names)

    def kept_lengths(self, trained: Experiment) -> dict[str, Any]:
        """Return the lengths that this model takes from the one that it continues.

        Values that are equal in both experiments are omitted, as are values that were not set.
        """
        ours, theirs = self._leaves(_MODEL), trained._leaves(_MODEL)
        kept = {name: theirs[name][1] for name in self.open_lengths if name in theirs}
        return {
            name: value
            for name, value in kept.items()
            if value is not None and value != ours.get(name, ("", None))[1]
        }

    def check_used(self, verb: str, uses: Mapping[str, Collection[str]]) -> None:
        """Raise UnusedBinding for a binding on the command line that a verb ignores.

        `uses` maps what the verb calls to the parameters that it needs, or to an empty collection
        if it needs all.
        """
        check_needed(self._config.bindings, verb, uses)

    def _follows(self, statement: Statement | None) -> bool:
        """Return whether a binding in a file has the value of TRAIN_LENGTH, or is absent."""
        if statement is None:
            return True
        return statement.value == "%TRAIN_LENGTH" and not statement.from_command_line

    def _leaves(self, root: str) -> dict[str, tuple[str, Any]]:
        return {str(key): leaf for key, leaf in self._config.leaves(root).items()}


def _owner(name: str) -> str:
    """Return the configurable, with its scope, of a parameter."""
    return name.rpartition(".")[0]
