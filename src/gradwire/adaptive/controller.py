"""What a controller is: a value with two functions, which choose how the next epoch is trained.

    state, decision = controller.first(["layer1.weight", "layer2.weight"])      # before the first step
    for epoch in range(epochs):
        ...                                                                     # train with `decision.settings`
        state, decision = controller.decide(state, observation)

A controller never changes. Its fields are its parameters, and its spec. What must be remembered is the `state`, a value
too, which is kept by whoever trains (see `run.ControllerRun`); so one controller can serve any number of trainings.

Both functions are pure: the same arguments give the same results. All ranks hand in the same numbers, so all of them
decide alike without asking each other. No tensor and no process group is touched here, and codecs are specs, as they
are written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradwire.adaptive.values import ALL, Choices, Decision, FrozenMapping, Observation, Settings, State, Switch, frozen
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Registry, to_spec


@dataclass(frozen=True)
class Controller(ABC):
    """Chooses codecs, batch size and learning rate of the next epoch from what was seen in the last one.

    To write one, subclass it as a frozen dataclass whose fields are the parameters, and implement `levels`,
    `first_choices` and `next_choices`. Register it with ``@controllers.register`` to make its spec work.

    Attributes:
        name: the name in specs and messages.
        watches: whether it needs norms and deviations, which cost each rank a copy of the gradient.

    Example:
        >>> @dataclass(frozen=True)
        ... class Later(Controller):
        ...     '''Compresses from epoch `begin` on.'''
        ...     name = "later"
        ...     watches = False
        ...     begin: int = 1
        ...     @property
        ...     def levels(self):
        ...         return "none", "topk"
        ...     def first_choices(self):
        ...         return Choices({ALL: Choice("none", "the first epoch")})
        ...     def next_choices(self, state, seen):
        ...         over = seen.epoch + 1 >= self.begin
        ...         return Choices({ALL: Choice("topk", "it is time")} if over else {})
        >>> from gradwire.adaptive.values import Choice
        >>> later = Later()
        >>> state, decision = later.first(["weight"])
        >>> decision.settings.levels
        {'weight': 'none'}
        >>> state, decision = later.decide(state, Observation(epoch=0, learning_rate=0.1, next_learning_rate=0.1))
        >>> decision.settings.levels
        {'weight': 'topk'}
    """

    name: ClassVar[str]
    watches: ClassVar[bool] = True

    # ---------------------------------------------------------------- what a rule implements

    @property
    @abstractmethod
    def levels(self) -> tuple[str, ...]:
        """All levels that it may choose."""

    @abstractmethod
    def first_choices(self) -> Choices:
        """What holds before anything was seen. There must be a choice for `ALL`."""

    @abstractmethod
    def next_choices(self, state: State, seen: Observation) -> Choices:
        """What shall hold in the next epoch.

        Args:
            state: what is in force, and what this rule kept.
            seen: the epoch that has ended.
        """

    # ---------------------------------------------------------------- what its user calls

    @property
    def spec(self) -> str:
        """The text that builds this controller again."""
        return to_spec(self)

    def first(self, parameters: Sequence[str]) -> tuple[State, Decision]:
        """Decide on the first epoch. Returns the state to begin with, and the decision.

        Args:
            parameters: the names of all parameters that are compressed.
        """
        if not parameters or len(set(parameters)) != len(parameters) or ALL in parameters:
            raise ConfigError(f"{self.name}: needs parameters with distinct names, got {list(parameters)!r}")
        first = self.first_choices()
        levels = FrozenMapping(dict.fromkeys(parameters, first.by_parameter[ALL].level))
        settings = Settings(levels, first.batch_factor, first.rate_factor)
        return State(settings, kept=frozen(first.kept)), Decision(settings)

    def decide(self, state: State, seen: Observation) -> tuple[State, Decision]:
        """Decide on the next epoch. Returns the new state and the decision; `state` stays as it is.

        Args:
            state: what `first` or the last `decide` returned.
            seen: the epoch that has ended. Epochs must be reported once, in order.
        """
        if seen.epoch <= state.epoch:
            raise ConfigError(
                f"{self.name}: the end of epoch {seen.epoch} was reported after that of epoch {state.epoch}; "
                "report every epoch once, in order"
            )
        before, choices = state.settings, self.next_choices(state, seen)
        levels = FrozenMapping({p: _level(choices, p, now) for p, now in before.levels.items()})
        after = Settings(levels, choices.batch_factor, choices.rate_factor)
        switches = tuple(_changes(seen.epoch, before, after, choices))
        return State(after, seen.epoch, frozen(choices.kept)), Decision(after, switches, choices.warning)

    def _number(self, kind: str, values: Mapping[str, float], parameter: str, epoch: int) -> float:
        """What was observed of one parameter."""
        if parameter not in values:
            raise ConfigError(
                f"{self.name}: the observation of epoch {epoch} lacks the {kind} of {parameter!r}; observe every "
                "parameter that was given to first()"
            )
        return float(values[parameter])


def check_codec(name: str, field: str, spec: object) -> None:
    """Refuse what is not a codec's spec. Whether there is such a codec, its builder finds out.

    Args:
        name: the controller's name, for the message.
        field: the parameter's name, for the message.
        spec: what was given for it.

    Example:
        >>> check_codec("warmup", "codec", "topk(ratio=0.01)")
        >>> check_codec("warmup", "codec", 0.01)
        Traceback (most recent call last):
        gradwire.core.errors.ConfigError: warmup: `codec` must be a codec's spec such as "powersgd(rank=4)", got 0.01
    """
    if not isinstance(spec, str) or not spec.strip():
        raise ConfigError(f'{name}: `{field}` must be a codec\'s spec such as "powersgd(rank=4)", got {spec!r}')


def _level(choices: Choices, parameter: str, now: str) -> str:
    choice = choices.wanted(parameter)
    return now if choice is None else choice.level


def _changes(epoch: int, before: Settings, after: Settings, choices: Choices) -> Iterator[Switch]:
    """One switch for each parameter that changes; a single one where all go together from one level to another."""
    if before.batch_factor != after.batch_factor:
        yield Switch(epoch, ALL, f"batch x{before.batch_factor}", f"batch x{after.batch_factor}", choices.why)
    changed = [p for p in before.levels if before.levels[p] != after.levels[p]]
    moves = {(before.levels[p], after.levels[p]) for p in before.levels}
    if changed and len(moves) == 1 and ALL in choices.by_parameter:
        choice = choices.by_parameter[ALL]
        yield Switch(epoch, ALL, before.levels[changed[0]], choice.level, choice.why)
        return
    for p in changed:
        choice = choices.by_parameter.get(p) or choices.by_parameter[ALL]
        yield Switch(epoch, p, before.levels[p], choice.level, choice.why)


controllers: Registry[Controller] = Registry("controller", "gradwire.adaptive")
