"""Every exception gradwire raises on purpose.

    GradwireError
    ├── ConfigError      a parameter is out of range or misspelt          (also a ValueError)
    ├── UnknownName      no codec, memory, strategy or model of that name (also a LookupError)
    ├── CodecError       a codec does not keep its contract               (also a TypeError)
    ├── Incompatible     the parts do not fit together                    (also a TypeError)
    ├── StateMismatch    a state dict comes from another set-up           (also a ValueError)
    ├── ExchangeFailed   a collective did not finish                      (also a RuntimeError)
    │   └── CorruptPayload   what a peer sent cannot be read
    ├── LaunchFailed     a worker process of ours failed                  (also a RuntimeError)
    ├── LabFailed        an emulated network cannot be had or kept        (also a RuntimeError)
    └── MissingExtra     an optional package is not installed             (also an ImportError)

A message says who speaks, what was wanted, what came, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GradwireError(Exception):
    """Base class: ``except GradwireError`` catches whatever the package raised itself.

    Example:
        >>> import gradwire
        >>> try:
        ...     gradwire.codec("topk(ratio=2)")
        ... except gradwire.GradwireError as problem:
        ...     print(problem)  # doctest: +ELLIPSIS
        topk: `ratio` must be ..., got 2
    """


class ConfigError(GradwireError, ValueError):
    """A parameter is out of range or misspelt.

    Example:
        >>> import gradwire
        >>> gradwire.codec("topk(rato=0.01)")
        Traceback (most recent call last):
        gradwire.core.errors.ConfigError: topk: has no parameter `rato`; did you mean ratio?
    """


class UnknownName(GradwireError, LookupError):
    """Nothing is registered under that name.

    Example:
        >>> import gradwire
        >>> gradwire.codec("topkk")
        Traceback (most recent call last):
        gradwire.core.errors.UnknownName: no codec named 'topkk'; did you mean topk or topkc or gtopk?
    """


class Incompatible(GradwireError, TypeError):
    """Codec, memory, strategy and model do not fit together.

    Example:
        >>> import gradwire
        >>> gradwire.VirtualCluster(workers=2, codec="topk", strategy="all_reduce")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradwire.core.errors.Incompatible: topk cannot run under all_reduce: its payloads cannot be added up. Use ...
    """


class CodecError(GradwireError, TypeError):
    """A codec does not keep its contract: a method returns something else than callers are promised.

    Example:
        >>> import gradwire
        >>> class Slip(type(gradwire.codec("eightbit"))):
        ...     name = "slip"
        ...
        ...     def payload_bytes(self, numel):
        ...         return numel / 2
        >>> gradwire.VirtualCluster(workers=2, codec=Slip())  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradwire.core.errors.CodecError: slip: `payload_bytes` must return a whole number of bytes, got 500.5; ...
    """


class StateMismatch(GradwireError, ValueError):
    """A state dict was saved by another set-up than the one that loads it.

    Example:
        >>> import gradwire
        >>> saved = gradwire.VirtualCluster(workers=2, codec="topk").state_dicts()
        >>> gradwire.VirtualCluster(workers=2, codec="qsgd").load_state_dicts(saved)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradwire.core.errors.StateMismatch: gradwire: this state belongs to topk with memory error_feedback, ...
    """


class ExchangeFailed(GradwireError, RuntimeError):
    """A collective did not finish: a peer died, timed out, or disagreed on sizes.

    Nothing more is sent after it. End the process, and start all ranks again from a checkpoint.

    Example:
        >>> import gradwire
        >>> try:
        ...     raise gradwire.ExchangeFailed("rank 2 is gone")  # in the place of loss.backward()
        ... except gradwire.ExchangeFailed as problem:
        ...     print(f"start again: {problem}")
        start again: rank 2 is gone
    """


class CorruptPayload(ExchangeFailed):
    """What a peer sent cannot be read: a size, a count or an index is none.

    Args:
        message: what is wrong, and once it is known whose it is, who sent it to which codec.
        row: of the payload, if one row is to blame.
        named: whether the message says who.

    Example:
        >>> import gradwire
        >>> issubclass(gradwire.CorruptPayload, gradwire.ExchangeFailed)
        True
    """

    def __init__(self, message: str, row: int | None = None, *, named: bool = False) -> None:
        super().__init__(message)
        self.row, self.named = row, named


class LaunchFailed(GradwireError, RuntimeError):
    """A rank that gradwire started failed, or the time was up.

    Args:
        message: what happened.
        rank: the rank that failed first, if one did.
        details: its traceback.
    """

    def __init__(self, message: str, *, rank: int | None = None, details: str = "") -> None:
        super().__init__(message)
        self.rank, self.details = rank, details


class LabFailed(GradwireError, RuntimeError):
    """An emulated network cannot be had here, or does not hold what was asked for."""


class MissingExtra(GradwireError, ImportError):
    """An optional package is not installed; the message carries the pip command.

    Example:
        >>> import gradwire
        >>> issubclass(gradwire.MissingExtra, ImportError)
        True
    """


class GradwireWarning(UserWarning):
    """What gradwire warns of; the command line prints it as one line."""


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """The tail of an unknown-name message: near matches, or else everything there is."""
    known = sorted(set(known))
    near = difflib.get_close_matches(wanted, known, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
