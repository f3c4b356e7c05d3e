"""What some steps of a training showed: plain numbers, in a line for people and as curves for a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.core.records import quantile
from gradwire.core.units import format_bytes, format_milliseconds

PREFIX = "gradwire/"  # of curves: they lie beside a user's own


@dataclass(frozen=True, kw_only=True)
class Window:
    """Some steps of rank 0. A step is the time between the beginnings of two: all of it, with data and optimizer.

    Exposed is the part of the exchange for which the backward pass waits, hidden the part behind which it goes on; None
    where nothing was exchanged by a codec.
    """

    step: int  # the last one
    codec: str  # of the last one
    framework: str = "DDP"  # that would reduce without it
    seconds: tuple[float, ...]  # one a step
    sent_bytes: float  # by this rank, a step
    plain_bytes: float  # that plain DDP would send
    hidden: float | None = None  # seconds a step, in the middle
    exposed: float | None = None
    parts: Mapping[str, float] | None = None  # encode, communicate, decode: seconds a step of the lanes' threads
    residual_norm: float | None = None  # of what the memory owes, after the last step
    nmse: float | None = None  # of the steps in which it was measured
    skipped_steps: int = 0  # not finite, since attach

    @property
    def ratio(self) -> float | None:
        """How many times fewer bytes than plain DDP; None where nothing is sent."""
        return self.plain_bytes / self.sent_bytes if self.sent_bytes else None

    @property
    def step_seconds(self) -> float:
        """In the middle."""
        return quantile(self.seconds, 0.5)

    @property
    def sentence(self) -> str:
        """One line of a log."""
        told = [f"step {self.step}: {self.codec} sends {sending(self.sent_bytes, self.plain_bytes, self.framework)}"]
        told.append(f"a step takes {format_milliseconds(self.step_seconds)}")
        if self.exposed is not None and self.hidden is not None:
            told.append(
                f"exchange {format_milliseconds(self.hidden)} hidden, {format_milliseconds(self.exposed)} exposed"
            )
        if self.residual_norm is not None:
            told.append(f"memory norm {self.residual_norm:.3g}")
        if self.nmse is not None:
            told.append(f"nmse {self.nmse:.3g}")
        return "; ".join(told)

    @property
    def values(self) -> dict[str, float]:
        """By the name of the curve; what is not known is left out."""
        found = {
            "step_seconds": self.step_seconds,
            "sent_bytes_per_step": self.sent_bytes,
            "compression_ratio": self.ratio,
            "hidden_seconds": self.hidden,
            "exposed_seconds": self.exposed,
            "residual_norm": self.residual_norm,
            "nmse": self.nmse,
            "skipped_steps": self.skipped_steps,
        }
        return {f"{PREFIX}{name}": float(value) for name, value in found.items() if value is not None}


def sending(sent_bytes: float, plain_bytes: float, framework: str = "DDP") -> str:
    """What a rank sends in a step, beside what a framework sends without a codec.

    >>> sending(2.5e6, 1e7), sending(1e7, 1e7), sending(0, 0)
    ('2.5 MB a step, 4 times less than plain DDP', '10 MB a step, as plain DDP does', 'nothing')
    """
    if not sent_bytes:
        return "nothing"
    ratio = f"{plain_bytes / sent_bytes:.3g}"
    told = f"as plain {framework} does" if ratio == "1" else f"{ratio} times less than plain {framework}"
    return f"{format_bytes(sent_bytes)} a step, {told}"
