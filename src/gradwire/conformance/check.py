"""A check: a function that tries one thing on a codec, and raises `Failed` with a sentence where that does not hold."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwire.collectives.choose import possible
from gradwire.core.codec import Codec, Combine
from gradwire.core.errors import GradwireError

CHECKS: list[Check] = []
OURS = Path(__file__).parent.parent
MEND = (
    "mend that line: it must work for any number of rows and elements, also for one row; "
    "to cut a payload into typed parts, use take of gradwire.kernels.rows"
)


class Failed(Exception):
    """What a codec does not satisfy."""


@dataclass(frozen=True, eq=False)
class Check:
    """One thing that codecs must satisfy.

    Args:
        name: of the check.
        title: what holds, in a sentence.
        remedy: what to do where it does not.
        function: takes a codec and what `over` and `strategies` name.
        over: further arguments, each with its values.
        strategies: try every strategy that can carry the codec.
        applies: whose affair it is: a check of a claim is for those who claim it.
    """

    name: str
    title: str
    remedy: str
    function: Callable[..., None]
    over: Mapping[str, Sequence[object]]
    strategies: bool
    applies: Callable[[Codec], bool]


@dataclass(frozen=True)
class Problem:
    """What went wrong in one case, and what to do about it."""

    case: str
    sentence: str
    remedy: str


@dataclass(frozen=True, eq=False)
class Case:
    """A check with its arguments."""

    check: Check
    arguments: Mapping[str, object] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Check and arguments."""
        told = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.check.name}({told})" if told else self.check.name

    def run(self, codec: Codec) -> None:
        """Raise `Failed`, or whatever the codec itself raised."""
        self.check.function(codec, **self.arguments)

    def problem(self, codec: Codec) -> Problem | None:
        """What went wrong; None: nothing did."""
        try:
            self.run(codec)
        except Failed as found:
            return Problem(self.label, str(found), self.check.remedy)
        except GradwireError as found:
            return Problem(self.label, str(found), "as the sentence says")
        except Exception as found:  # an author's code may raise anything
            frames = traceback.extract_tb(found.__traceback__)
            own = [f for f in frames if OURS not in Path(f.filename).parents and "site-packages" not in f.filename]
            last = (own or frames)[-1]
            place = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
            return Problem(self.label, f"{type(found).__name__} in {place}: {found}", MEND)
        return None


def always(codec: Codec) -> bool:
    """A check for every codec."""
    return True


def one_shot(codec: Codec) -> bool:
    """A check for those that write `encode` and `decode`."""
    return codec.traits.combine is not Combine.ROUNDS


def check(
    remedy: str,
    applies: Callable[[Codec], bool] = always,
    *,
    strategies: bool = False,
    **over: Sequence[object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a check; the first line of its docstring says what must hold.

    Args:
        remedy: what to do where it does not hold.
        applies: whose affair it is.
        strategies: try every strategy that can carry the codec.
        over: further arguments, each with its values.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        title = (function.__doc__ or "").strip().partition("\n")[0]
        CHECKS.append(Check(function.__name__, title, remedy, function, over, strategies, applies))
        return function

    return add


def cases(codec: Codec) -> Iterator[Case]:
    """All that is tried on a codec."""
    for one in CHECKS:
        if one.applies(codec):
            over: dict[str, Sequence[object]] = dict(one.over)
            if one.strategies:
                over["strategy"] = possible(codec) or ["auto"]
            for values in itertools.product(*over.values()):
                yield Case(one, dict(zip(over, values, strict=True)))


def require(holds: object, problem: str) -> None:
    """Raise `Failed` with the sentence `problem` unless `holds`."""
    if not holds:
        raise Failed(problem)
