"""What goes into a controller and what comes out of it: values, made of plain data, never changed.

A *level* is the spec of one codec that a controller may choose, as its user wrote it: ``"powersgd(rank=4)"``. The word
means nothing else in this package.

    Observation   what was seen in an epoch                         goes in
    Decision      the settings of the next epoch, and what changed  comes out
    State         what must be remembered until the next decision   goes in and comes out
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gradwire.core.errors import ConfigError

ALL = "*"  # in the place of a parameter's name: the whole model at once
V_co = TypeVar("V_co", covariant=True)


class FrozenMapping(Mapping[str, V_co]):
    """A mapping that cannot be changed. It equals a dict with the same entries.

    Args:
        values: the entries, which are copied.

    Example:
        >>> levels = FrozenMapping({"weight": "topk"})
        >>> levels["weight"], levels == {"weight": "topk"}
        ('topk', True)
        >>> levels["weight"] = "fp16"
        Traceback (most recent call last):
        TypeError: 'FrozenMapping' object does not support item assignment
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, V_co]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> V_co:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


def frozen(value: Any) -> Any:
    """Copy plain data into a form that cannot be changed: mappings become `FrozenMapping`, lists become tuples.

    Args:
        value: None, a truth value, a number, a text, or lists, tuples and mappings (with texts as keys) of these.

    Example:
        >>> kept = frozen({"norms": [8.0, 7.0]})
        >>> kept
        {'norms': (8.0, 7.0)}
        >>> frozen({"norms": {8.0}})
        Traceback (most recent call last):
        gradwire.core.errors.ConfigError: adaptive: a controller remembers plain data only (numbers, texts, lists and \
mappings of them), got {8.0}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return FrozenMapping({key: frozen(one) for key, one in value.items()})
    raise ConfigError(
        f"adaptive: a controller remembers plain data only (numbers, texts, lists and mappings of them), got {value!r}"
    )


def plain(value: Any) -> Any:
    """The reverse of `frozen`: dicts and lists, as JSON has them.

    Args:
        value: what `frozen` returned.

    Example:
        >>> plain(frozen({"norms": (8.0, 7.0)}))
        {'norms': [8.0, 7.0]}
    """
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return value


@dataclass(frozen=True)
class Observation:
    """What was seen in an epoch. All ranks know the same numbers.

    The learning rates are those of the schedule, without a controller's `rate_factor`. Otherwise a smaller batch would
    look like a decay. A controller that does not watch gets no norms and no deviations.

    Args:
        epoch: the epoch that has just ended; the first is 0.
        learning_rate: of its last step.
        next_learning_rate: of the first step of the next epoch.
        norms: by parameter, the norm of the sum of the epoch's gradients, averaged over the workers.
        deviations: by parameter, ``sqrt(mean |g|^2 - |mean g|^2)`` over the epoch's steps, averaged over the workers.
        steps: how many optimizer steps the epoch had.
        whole_norm: as in `norms`, of all parameters together.

    Example:
        >>> Observation(epoch=0, learning_rate=0.1, next_learning_rate=0.01, norms={"weight": 8.0}).steps
        1
    """

    epoch: int
    learning_rate: float
    next_learning_rate: float
    norms: Mapping[str, float] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)
    steps: int = 1
    whole_norm: float = 0.0


@dataclass(frozen=True)
class Settings:
    """How an epoch is trained.

    Args:
        levels: the level of each compressed parameter; empty without a controller.
        batch_factor: how many micro-batches of the base batch make a step.
        rate_factor: what the learning rate of the schedule is multiplied by.

    Example:
        >>> Settings({"weight": "topk"}).batch_factor
        1
    """

    levels: Mapping[str, str] = field(default_factory=lambda: FrozenMapping({}))
    batch_factor: int = 1
    rate_factor: float = 1.0


@dataclass(frozen=True)
class Choice:
    """What a rule wants for one parameter.

    Args:
        level: one of the controller's levels.
        why: the reason, in a few words.

    Example:
        >>> Choice("topk(ratio=0.01)", "the warm-up is over").level
        'topk(ratio=0.01)'
    """

    level: str
    why: str


@dataclass(frozen=True)
class Choices:
    """What a rule wants for the next epoch: what the author of a controller returns.

    Args:
        by_parameter: the choice for a parameter, or under the name `ALL` for all others. A parameter without a choice
            keeps its level.
        kept: what the rule wants to find in ``state.kept`` next time. Plain data.
        batch_factor: see `Settings`.
        rate_factor: see `Settings`.
        why: the reason for the two factors.
        warning: what the user should be told, if anything.

    Example:
        >>> choices = Choices({ALL: Choice("topk", "the first epoch")}, kept={"norm": 8.0})
        >>> choices.wanted("weight")
        Choice(level='topk', why='the first epoch')
    """

    by_parameter: Mapping[str, Choice] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    batch_factor: int = 1
    rate_factor: float = 1.0
    why: str = ""
    warning: str = ""

    def wanted(self, parameter: str) -> Choice | None:
        """The choice for one parameter; None if it keeps its level.

        Args:
            parameter: its name.
        """
        return self.by_parameter.get(parameter) or self.by_parameter.get(ALL)


@dataclass(frozen=True)
class Switch:
    """A change that a controller made, for the log.

    Args:
        epoch: the change holds from the epoch after this one.
        parameter: its name, or `ALL`.
        before: the level until then, or a batch such as ``"batch x1"``.
        after: the level from then on, or a batch.
        why: the reason.

    Example:
        >>> switch = Switch(3, "weight", "powersgd(rank=4)", "powersgd(rank=1)", "norm 8 to 7: 0.12 < eta")
        >>> switch.to_json()["to"]
        'powersgd(rank=1)'
        >>> Switch.from_json(switch.to_json()) == switch
        True
    """

    epoch: int
    parameter: str
    before: str
    after: str
    why: str

    def to_json(self) -> dict[str, Any]:
        """The form that records and checkpoints have."""
        return {
            "epoch": self.epoch,
            "parameter": self.parameter,
            "from": self.before,
            "to": self.after,
            "why": self.why,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Switch:
        """The reverse of `to_json`.

        Args:
            values: what `to_json` returned.
        """
        return cls(values["epoch"], values["parameter"], values["from"], values["to"], values["why"])


@dataclass(frozen=True)
class Decision:
    """What a controller has decided.

    Args:
        settings: of the next epoch.
        switches: what is different from the epoch before, and why.
        warning: what the user should be told, if anything.

    Example:
        >>> Decision(Settings({"weight": "topk"})).switches
        ()
    """

    settings: Settings
    switches: tuple[Switch, ...] = ()
    warning: str = ""


@dataclass(frozen=True)
class State:
    """All that a controller must know to decide again. It cannot be changed; every decision returns a new one.

    Args:
        settings: those in force.
        epoch: the last epoch that ended; -1 before the first.
        kept: what the rule itself remembers, by names of its choice.

    Example:
        >>> state = State(Settings({"weight": "topk"}), epoch=2, kept=frozen({"norm": 8.0}))
        >>> state.to_json()
        {'epoch': 2, 'levels': {'weight': 'topk'}, 'batch_factor': 1, 'rate_factor': 1.0, 'kept': {'norm': 8.0}}
        >>> State.from_json(state.to_json()) == state
        True
    """

    settings: Settings
    epoch: int = -1
    kept: Mapping[str, Any] = field(default_factory=lambda: FrozenMapping({}))

    def to_json(self) -> dict[str, Any]:
        """Dicts, lists, numbers and texts, to be saved."""
        return {
            "epoch": self.epoch,
            "levels": dict(self.settings.levels),
            "batch_factor": self.settings.batch_factor,
            "rate_factor": self.settings.rate_factor,
            "kept": plain(self.kept),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> State:
        """The reverse of `to_json`.

        Args:
            values: what `to_json` returned.
        """
        settings = Settings(FrozenMapping(values["levels"]), values["batch_factor"], values["rate_factor"])
        return cls(settings, values["epoch"], frozen(values["kept"]))
