"""Every exception gradwire raises on purpose.

GradwireError
├── ConfigError      a parameter is out of range or misspelt          (also a ValueError)
├── UnknownName      no codec, memory, strategy or model of that name (also a LookupError)
├── Incompatible     the parts do not fit together                    (also a TypeError)
├── StateMismatch    a state dict comes from another set-up           (also a ValueError)
├── ExchangeFailed   a collective did not finish                      (also a RuntimeError)
├── LaunchFailed     a worker process of ours failed                  (also a RuntimeError)
├── LabFailed        an emulated network cannot be had or kept       (also a RuntimeError)
└── MissingExtra     an optional package is not installed             (also an ImportError)

A message says who speaks, what was wanted, what came, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradwireError(Exception):
    """Base class: ``except GradwireError`` catches whatever the package raised itself."""


class ConfigError(GradwireError, ValueError):
    """A parameter is out of range or misspelt."""


class UnknownName(GradwireError, LookupError):
    """Nothing is registered under that name."""


class Incompatible(GradwireError, TypeError):
    """Codec, memory, strategy and model do not fit together."""


class StateMismatch(GradwireError, ValueError):
    """A state dict was saved by another set-up than the one that loads it."""


class ExchangeFailed(GradwireError, RuntimeError):
    """A collective did not finish: a peer died, timed out, or disagreed on sizes."""


class LaunchFailed(GradwireError, RuntimeError):
    """A rank failed or the time was up. `rank` is the one that failed first, `details` its traceback."""

    def __init__(self, message: str, *, rank: int | None = None, details: str = "") -> None:
        super().__init__(message)
        self.rank, self.details = rank, details


class LabFailed(GradwireError, RuntimeError):
    """An emulated network cannot be had here, or does not hold what was asked for."""


class MissingExtra(GradwireError, ImportError):
    """An optional package is not installed; the message carries the pip command."""


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """The tail of an unknown-name message: near matches, or else everything there is."""
    known = sorted(known)
    near = difflib.get_close_matches(wanted, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
