"""What a controller is: at the end of an epoch it is told what was seen, and answers with the settings of the next.

A controller never touches a tensor or a process group. It is handed an `Observation`, numbers that all ranks know
alike, and from these and its own memory it returns `Settings`; so all ranks agree without asking each other. Codecs
are specs here, taken as they are written.

A controller's fields are its parameters, fixed and part of its spec. What it remembers is kept beside them, and
saved and restored by ``state_dict`` and ``load_state_dict``:

    settings = controller.start(["layer1.weight", "layer2.weight"])     # before the first step
    for epoch in range(epochs):
        ...                                                             # train with `settings`
        settings = controller.end_epoch(observation)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gradwire.core.errors import ConfigError, StateMismatch
from gradwire.core.registry import Registry, to_spec

ALL = "*"  # in the place of a parameter's name: a switch of the whole model at once


@dataclass(frozen=True)
class Observation:
    """What all ranks know alike at the end of an epoch.

    The learning rates are those of the schedule, before a controller's `rate_factor`: else a smaller batch would look
    like a decay. A controller that does not watch gets no norms and no deviations.
    """

    epoch: int  # that has just ended, from 0
    learning_rate: float  # of its last step
    next_learning_rate: float  # of the next epoch's first step
    norms: Mapping[str, float] = field(default_factory=dict)  # of the sum of the epoch's gradients, mean over workers
    deviations: Mapping[str, float] = field(default_factory=dict)  # sqrt(mean |g|^2 - |mean g|^2), mean over workers
    steps: int = 1  # optimizer steps in the epoch
    whole_norm: float = 0.0  # of the sum of the epoch's gradients over all parameters, mean over workers


@dataclass(frozen=True)
class Settings:
    """How the next epoch is trained."""

    levels: Mapping[str, str]  # parameter -> codec spec
    batch_factor: int = 1  # micro-batches a step, each of the base batch
    rate_factor: float = 1.0  # multiplies the learning rate of the schedule


@dataclass(frozen=True)
class Choice:
    """What a rule wants for one parameter, and its reason in a few words."""

    level: str
    why: str


@dataclass(frozen=True)
class Decision:
    """What a rule wants next: for single parameters, or under the name `ALL` for every one."""

    choices: Mapping[str, Choice] = field(default_factory=dict)
    batch_factor: int = 1
    rate_factor: float = 1.0
    why: str = ""  # of the factors


@dataclass(frozen=True)
class Switch:
    """A change that a controller made, for the log. It holds from the epoch after `epoch`."""

    epoch: int
    parameter: str  # or `ALL`
    before: str
    after: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """As in records: a mapping of plain values."""
        return {
            "epoch": self.epoch,
            "parameter": self.parameter,
            "from": self.before,
            "to": self.after,
            "why": self.why,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Switch:
        return cls(values["epoch"], values["parameter"], values["from"], values["to"], values["why"])


@dataclass
class State:
    """What a controller remembers. `kept` is the rule's own: plain values, by a name of its choice."""

    settings: Settings | None = None
    epoch: int = -1  # the last one that ended
    switches: list[Switch] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Controller(ABC):
    """Observes epochs and sets the next one; its fields are its parameters.

    A rule implements `levels`, `first` and `decide`; the rest is the same for all.
    """

    name: ClassVar[str]
    watches: ClassVar[bool] = True  # whether it needs norms and deviations, which cost a copy of the gradient
    state: State = field(default_factory=State, init=False, repr=False, compare=False)

    @property
    @abstractmethod
    def levels(self) -> tuple[str, ...]:
        """All codec specs that it may choose."""

    @abstractmethod
    def first(self) -> Decision:
        """What holds before anything was seen; its choice must be for `ALL`."""

    @abstractmethod
    def decide(self, seen: Observation) -> Decision:
        """What holds in the next epoch. Parameters without a choice stay as they are."""

    # ---------------------------------------------------------------- what the caller uses

    @property
    def spec(self) -> str:
        """The text that builds this controller again, without its memory."""
        return to_spec(self)

    @property
    def settings(self) -> Settings:
        """What holds now."""
        if self.state.settings is None:
            raise ConfigError(f"{self.name}: nothing is set yet; call start(parameters) first")
        return self.state.settings

    @property
    def switches(self) -> list[Switch]:
        """All changes so far."""
        return self.state.switches

    def start(self, parameters: Sequence[str]) -> Settings:
        """Forget what was seen; the settings of the first epoch for these parameters."""
        if not parameters or len(set(parameters)) != len(parameters) or ALL in parameters:
            raise ConfigError(f"{self.name}: needs parameters with distinct names, got {list(parameters)!r}")
        first = self.first()
        levels = dict.fromkeys(parameters, first.choices[ALL].level)
        self._remember(State(Settings(levels, first.batch_factor, first.rate_factor)))
        return self.settings

    def end_epoch(self, seen: Observation) -> Settings:
        """The settings of the epoch after the one that `seen` tells of."""
        before = self.settings
        if seen.epoch <= self.state.epoch:
            raise ConfigError(
                f"{self.name}: the end of epoch {seen.epoch} was reported after that of epoch {self.state.epoch}; "
                "report every epoch once, in order"
            )
        decision = self.decide(seen)
        levels = {p: _level(decision, p, now) for p, now in before.levels.items()}
        after = Settings(levels, decision.batch_factor, decision.rate_factor)
        self.state.switches.extend(_changes(seen.epoch, before, after, decision))
        self.state.settings, self.state.epoch = after, seen.epoch
        return after

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, in plain values; the same on all ranks."""
        settings = self.settings
        return {
            "controller": self.spec,
            "epoch": self.state.epoch,
            "levels": dict(settings.levels),
            "batch_factor": settings.batch_factor,
            "rate_factor": settings.rate_factor,
            "switches": [s.to_json() for s in self.state.switches],
            "kept": deepcopy(self.state.kept),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; `settings` then tells what holds."""
        saved = state.get("controller")
        if saved != self.spec:
            raise StateMismatch(
                f"{self.name}: the state was saved by controller {saved!r}, and this one is {self.spec!r}; "
                "build the controller as it was, or begin anew with start()"
            )
        if self.state.settings is not None and set(state["levels"]) != set(self.state.settings.levels):
            odd = sorted(set(state["levels"]) ^ set(self.state.settings.levels))
            raise StateMismatch(
                f"{self.name}: the state is of other parameters; only one side has {', '.join(odd[:3])}"
                f"{' and more' if len(odd) > 3 else ''}. Load it into the same model"
            )
        settings = Settings(dict(state["levels"]), state["batch_factor"], state["rate_factor"])
        switches = [Switch.from_json(s) for s in state["switches"]]
        self._remember(State(settings, state["epoch"], switches, deepcopy(state["kept"])))

    def _remember(self, state: State) -> None:
        object.__setattr__(self, "state", state)

    def _number(self, kind: str, values: Mapping[str, float], parameter: str, epoch: int) -> float:
        """What was observed of one parameter."""
        if parameter not in values:
            raise ConfigError(
                f"{self.name}: the observation of epoch {epoch} lacks the {kind} of {parameter!r}; observe every "
                "parameter that was given to start()"
            )
        return float(values[parameter])


def check_codec(name: str, field: str, spec: object) -> None:
    """A controller named `name` needs a codec's spec in `field`. Whether there is such a codec, its builder tells."""
    if not isinstance(spec, str) or not spec.strip():
        raise ConfigError(f'{name}: `{field}` must be a codec\'s spec such as "powersgd(rank=4)", got {spec!r}')


def _level(decision: Decision, parameter: str, now: str) -> str:
    choice = decision.choices.get(parameter) or decision.choices.get(ALL)
    return now if choice is None else choice.level


def _changes(epoch: int, before: Settings, after: Settings, decision: Decision) -> Iterator[Switch]:
    """One switch for each parameter that changes; a single one where all go together from one level to another."""
    if before.batch_factor != after.batch_factor:
        yield Switch(epoch, ALL, f"batch x{before.batch_factor}", f"batch x{after.batch_factor}", decision.why)
    changed = [p for p in before.levels if before.levels[p] != after.levels[p]]
    moves = {(before.levels[p], after.levels[p]) for p in before.levels}
    if changed and len(moves) == 1 and ALL in decision.choices:
        choice = decision.choices[ALL]
        yield Switch(epoch, ALL, before.levels[changed[0]], choice.level, choice.why)
        return
    for p in changed:
        choice = decision.choices.get(p) or decision.choices[ALL]
        yield Switch(epoch, p, before.levels[p], choice.level, choice.why)


controllers: Registry[Controller] = Registry("controller", "gradwire.adaptive")
