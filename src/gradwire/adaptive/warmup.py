"""Warm-up of the compression: the first epochs send more, less from epoch to epoch, until the codec itself takes over.

    warmup(codec='topk(ratio=0.001)')

is Deep Gradient Compression's: 25 %, 6.25 %, 1.5625 % and 0.390625 % in the first four epochs, 0.1 % from the fifth
on. Any parameter of a codec may be warmed up, ``warmup(codec='powersgd(rank=1)', field='rank', begin=8, factor=0.5,
epochs=3)`` goes through ranks 8, 4, 2 and 1. A stage never passes the value that stands in the codec's spec.

Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.adaptive.controller import Controller, check_codec, controllers
from gradwire.adaptive.values import ALL, Choice, Choices, Observation, State
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check, parse


@controllers.register
@dataclass(frozen=True)
class Warmup(Controller):
    """Sends more in the first epochs: in epoch e < `epochs` the codec's `field` is ``begin * factor**e``.

    Args:
        codec: the codec from epoch `epochs` on; its arguments must be named.
        field: the parameter of the codec that changes.
        begin: its value in the first epoch.
        factor: what it is multiplied by from epoch to epoch.
        epochs: how many epochs the warm-up takes.

    Example:
        >>> warmup = Warmup("topk(ratio=0.001)")
        >>> state, decision = warmup.first(["weight"])
        >>> decision.settings.levels
        {'weight': 'topk(ratio=0.25)'}
        >>> state, decision = warmup.decide(state, Observation(epoch=0, learning_rate=0.1, next_learning_rate=0.1))
        >>> decision.settings.levels
        {'weight': 'topk(ratio=0.0625)'}
    """

    name: ClassVar[str] = "warmup"
    watches: ClassVar[bool] = False
    codec: str = ""
    field: str = "ratio"
    begin: float = 0.25
    factor: float = 0.25
    epochs: int = 4

    def __post_init__(self) -> None:
        check = Check(self.name)
        check_codec(self.name, "codec", self.codec)
        if not isinstance(self.field, str) or not self.field.isidentifier():
            check.fail("field", "the name of one of the codec's parameters", self.field)
        check.number("begin", self.begin, 1e-30, 1e30, "a number above 0")
        check.number("factor", self.factor, 1e-30, 1e30, "a number above 0")
        check.integer("epochs", self.epochs, 1)
        _ = self.stages  # fails now, if it must

    @property
    def stages(self) -> tuple[str, ...]:
        """The levels of the first epochs, one each."""
        name, arguments = _parts(self.codec)
        values = (self._value(e, arguments.get(self.field)) for e in range(self.epochs))
        all_arguments = (arguments | {self.field: v} for v in values)
        return tuple(f"{name}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for a in all_arguments)

    @property
    def levels(self) -> tuple[str, ...]:
        """Those of the warm-up, and the codec itself."""
        return tuple(dict.fromkeys((*self.stages, self.codec)))

    def first_choices(self) -> Choices:
        """The first stage."""
        return self._at(0)

    def next_choices(self, state: State, seen: Observation) -> Choices:
        """The stage of the next epoch.

        Args:
            state: is not needed.
            seen: the epoch that has ended.
        """
        return self._at(seen.epoch + 1)

    def _at(self, epoch: int) -> Choices:
        if epoch < self.epochs:
            return Choices({ALL: Choice(self.stages[epoch], f"epoch {epoch + 1} of {self.epochs} of the warm-up")})
        return Choices({ALL: Choice(self.codec, "the warm-up is over")})

    def _value(self, epoch: int, target: object) -> float:
        """Of the field in that epoch; `target` is what the codec's spec says, if it does."""
        value = self.begin * self.factor**epoch
        if isinstance(target, int | float):
            value = max(value, target) if self.factor < 1 else min(value, target)
        if not isinstance(self.begin, int):
            return float(f"{value:.12g}")
        if not float(value).is_integer():
            raise ConfigError(
                f"{self.name}: `begin` is a whole number, and epoch {epoch} would set {self.field}={value:g}; choose "
                "`begin`, `factor` and `epochs` so that all are whole, or write `begin` with a decimal point"
            )
        return int(value)


def _parts(spec: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a spec."""
    name, positional, named = parse(spec, "codec")
    if positional:
        raise ConfigError(
            f'warmup: `codec` must be a name, or a name with named arguments such as "topk(ratio=0.001)", got {spec!r}'
        )
    return name, named
