"""Where the time of a step goes, and what is to blame: decided on plain numbers.

All ranks end a step together, so a step takes as long as the slowest rank takes for itself, and what the network adds
to that. Of a rank's exposed communication the network's share is that of the rank that came last: it waits for nobody.
So, with o the own time of a rank r in a step i and e its exposed communication:

    network = mean over i of min over r of e         waiting = mean over i and r of e, less the network's share
    lag     = o of the slowest rank, less the median of the others'

What a cause costs is what the step would gain without it: the slowest rank may then be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from gradwire.core.errors import ConfigError
from gradwire.core.units import format_milliseconds
from gradwire.diagnosis.watch import Settings, Step, Watch, aligned

NETWORK, BUCKETS, STRAGGLER, UNEVEN = "network", "tiny buckets", "straggler", "uneven ranks"
DATA, SCRIPT, NOTHING, UNKNOWN = "data loading", "script", "nothing", "unknown"
PARTS = ("data", "compute", "waiting", "network", "optimizer", "other")
LOADER, BETWEEN = "the data loader", "the script between steps"

LEAST = 3  # steps
EVALUATION = 5.0  # times the usual: a step with an evaluation or a checkpoint in it
BLAMED = 0.10  # of a step, to be called a cause
SCRIPT_BLAMED = 0.20  # of the script's own work: some is always there
ALWAYS = 0.7  # of the steps, in which the same rank is last
TINY_BYTES = 1 << 18  # of a bucket, on average
MANY = 8  # buckets


@dataclass(frozen=True)
class Cause:
    """What costs time, and how much of a step it costs."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Lag:
    """The slowest rank beside the others. `part` is what it takes longest for, compared to them."""

    rank: int
    seconds: float
    own_seconds: float
    others_seconds: float
    part: str
    share: float  # of the steps, in which it was the last


@dataclass(frozen=True, kw_only=True)
class Account:
    """Seconds of a usual step. `parts` are of the mean rank and add up to it."""

    steps: int
    ranks: int
    step_seconds: float
    parts: dict[str, float]
    lag: Lag | None  # None: there is one rank
    forward_seconds: float
    backward_seconds: float
    bucket_bytes: tuple[int, ...]
    causes: tuple[Cause, ...]  # the most expensive first

    @classmethod
    def of(cls, books: Mapping[str, Any]) -> Account:
        """Read back from a record."""
        lag = None if books["lag"] is None else Lag(**books["lag"])
        causes = tuple(Cause(**cause) for cause in books["causes"])
        return cls(**{**books, "lag": lag, "causes": causes})

    @property
    def network_seconds(self) -> float:
        return self.parts["network"]

    @property
    def headroom(self) -> float:
        """How many times as fast a step would be if the exchange were free."""
        return self.step_seconds / max(1e-9, self.step_seconds - self.network_seconds)

    def share(self, part: str) -> float:
        """Of a step."""
        return self.parts[part] / self.step_seconds


def account(watches: Sequence[Watch]) -> Account:
    """The books of a usual step. All ranks that were seen; there must be at least `LEAST` steps."""
    by_rank = _usual(aligned(watches))
    if not by_rank or len(by_rank[0]) < LEAST:
        raise ConfigError(f"doctor: {LEAST} steps are the least that says anything; let the job run longer")
    step_seconds = _mean(by_rank, lambda s: s.seconds)
    network = fmean(min(s.exposed for s in one) for one in zip(*by_rank, strict=True)) if len(watches) > 1 else 0.0
    parts = {
        "data": _mean(by_rank, lambda s: s.data),
        "compute": _mean(by_rank, lambda s: s.compute),
        "waiting": _mean(by_rank, lambda s: s.exposed) - network,
        "network": network,
        "optimizer": _mean(by_rank, lambda s: s.optimizer),
    }
    parts["other"] = max(0.0, step_seconds - sum(parts.values()))
    settings = watches[0].settings
    lag = _lag(by_rank) if len(by_rank) > 1 else None
    found = Account(
        steps=len(by_rank[0]),
        ranks=watches[0].ranks,
        step_seconds=step_seconds,
        parts={name: parts[name] for name in PARTS},
        lag=lag,
        forward_seconds=_mean(by_rank, lambda s: s.forward),
        backward_seconds=_mean(by_rank, lambda s: s.backward),
        bucket_bytes=settings.bucket_bytes,
        causes=_causes(by_rank, step_seconds, network, lag, settings),
    )
    return found


def _usual(by_rank: Sequence[tuple[Step, ...]]) -> list[list[Step]]:
    """Without steps that took many times as long as most: they have an evaluation or a checkpoint in them."""
    lengths = [max(s.seconds for s in one) for one in zip(*by_rank, strict=True)]
    limit = EVALUATION * median(lengths) if lengths else 0.0
    return [[s for s, length in zip(steps, lengths, strict=True) if length <= limit] for steps in by_rank]


def _mean(by_rank: Sequence[Sequence[Step]], value: Callable[[Step], float]) -> float:
    return fmean(value(s) for steps in by_rank for s in steps)


def _lag(by_rank: Sequence[Sequence[Step]]) -> Lag:
    own = [fmean(s.own for s in steps) for steps in by_rank]
    slowest = max(range(len(own)), key=own.__getitem__)
    others = [r for r in range(len(own)) if r != slowest]
    last = sum(max(one, key=lambda s: s.own) is one[slowest] for one in zip(*by_rank, strict=True))
    extra = {
        part: _mean([by_rank[slowest]], value) - median(_mean([by_rank[r]], value) for r in others)
        for part, value in _OWN_PARTS.items()
    }
    usual = median(own[r] for r in others)
    return Lag(
        rank=slowest,
        seconds=own[slowest] - usual,
        own_seconds=own[slowest],
        others_seconds=usual,
        part=max(extra, key=extra.__getitem__),
        share=last / len(by_rank[0]),
    )


_OWN_PARTS: dict[str, Callable[[Step], float]] = {
    LOADER: lambda s: s.data,
    "the forward pass": lambda s: s.forward,
    "the backward pass": lambda s: s.backward,
    "the optimizer": lambda s: s.optimizer,
    BETWEEN: lambda s: s.other,
}


# ---------------------------------------------------------------- what is to blame


def _causes(
    by_rank: Sequence[Sequence[Step]], step_seconds: float, network: float, lag: Lag | None, settings: Settings
) -> tuple[Cause, ...]:
    """Those that cost enough to be named."""
    exchange = BUCKETS if tiny(settings.bucket_bytes) else NETWORK
    found = [Cause(exchange, network)]
    steady = lag is not None and lag.share >= ALWAYS
    if lag is not None and steady:
        found.append(Cause(STRAGGLER, lag.seconds))
    elif lag is not None:
        found.append(Cause(UNEVEN, fmean(_spread(one) for one in zip(*by_rank, strict=True))))
    for kind, part in ((DATA, LOADER), (SCRIPT, BETWEEN)):
        of_one = lag.seconds if lag is not None and steady and lag.part == part else 0.0  # counted above
        found.append(Cause(kind, _without(by_rank, _OWN_PARTS[part]) - of_one))
    limits = {SCRIPT: SCRIPT_BLAMED, UNEVEN: SCRIPT_BLAMED}
    named = [c for c in found if c.seconds >= limits.get(c.kind, BLAMED) * step_seconds]
    return tuple(sorted(named, key=lambda c: -c.seconds))


def _spread(one: Sequence[Step]) -> float:
    """What the ranks wait in a step for the last of them."""
    return max(s.own for s in one) - median(s.own for s in one)


def _without(by_rank: Sequence[Sequence[Step]], part: Callable[[Step], float]) -> float:
    """What a step would gain if no rank spent anything on a part."""
    own = max(fmean(s.own for s in steps) for steps in by_rank)
    return own - max(fmean(s.own - part(s) for s in steps) for steps in by_rank)


def tiny(bucket_bytes: Sequence[int]) -> bool:
    """Whether gradients travel in many small messages."""
    return len(bucket_bytes) >= MANY and fmean(bucket_bytes) < TINY_BYTES


def in_words(cause: Cause, found: Account, settings: Settings) -> str:
    """A sentence on a cause, with what to do about it, but for compression."""
    share = f"{100 * cause.seconds / found.step_seconds:.0f} % of a step"
    if cause.kind == NETWORK:
        return f"The network: for {share} all ranks wait for sums that nothing hides."
    if cause.kind == BUCKETS:
        mean = fmean(found.bucket_bytes) / 1e3
        return (
            f"Tiny buckets: gradients go in {len(found.bucket_bytes)} messages of {mean:.3g} kB, and {share} is spent "
            f"waiting for them. Leave bucket_cap_mb at its default (25), and look again."
        )
    if cause.kind == STRAGGLER:
        lag = found.lag
        assert lag is not None, "there are other ranks to compare with"
        return (
            f"Rank {lag.rank} is late: it takes {format_milliseconds(lag.own_seconds)} of a step for itself, the "
            f"others {format_milliseconds(lag.others_seconds)}, and all wait for it, {share}. It loses most in "
            f"{lag.part}: look at what this rank's machine and data do differently."
        )
    if cause.kind == UNEVEN:
        return (
            f"Ranks take turns in being late, which costs {share}: batches of different size, other work on the "
            "machines, or too few cores."
        )
    if cause.kind == DATA:
        return f"Data loading: {share} is spent waiting for the data loader. {_loader(settings)}"
    return (
        f"The script itself: {share} is neither model, exchange, optimizer nor data loader. Look at what is done "
        "between steps: data that is made there, .item() and printing, copies, checkpoints."
    )


def _loader(settings: Settings) -> str:
    if not settings.loader_workers:
        return "It has no workers: set num_workers, so that batches are made beside the training."
    return f"Its {settings.loader_workers} workers are too few or too slow: raise num_workers, or make samples cheaper."
