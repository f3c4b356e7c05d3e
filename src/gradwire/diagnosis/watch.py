"""What one rank saw of a job: plain numbers, as JSON from rank to rank.

Seconds of a step end when the optimizer has stepped. Communication is exposed where the backward pass has found its
last gradient and waits for the sums: for the network, or for a rank that is later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step of one rank."""

    seconds: float  # all of it
    forward: float  # to the beginning of the backward pass
    backward: float  # until the last gradient is there
    exposed: float  # from then on until the last sum is there, and until DDP has sent buffers around
    optimizer: float
    data: float  # in the data loader

    @property
    def compute(self) -> float:
        return self.forward + self.backward

    @property
    def other(self) -> float:
        """What is none of these: the script's own work between steps."""
        return max(0.0, self.seconds - self.compute - self.exposed - self.optimizer - self.data)

    @property
    def own(self) -> float:
        """What the rank takes for itself. The rest it waits, for the network or for other ranks."""
        return self.seconds - self.exposed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a rank was told, by arguments and by its environment."""

    backend: str = "gloo"
    device: str = CPU
    bucket_cap_bytes: int = 25 << 20
    bucket_bytes: tuple[int, ...] = ()
    find_unused_parameters: bool = False
    unused_bytes: int = 0  # the most that a step has left without a gradient
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    hook: str | None = None  # that DDP's gradients go through
    loader_workers: int | None = None  # None: no data loader was seen
    pin_memory: bool | None = None
    threads: int = 1
    cores: int = 1
    anomaly_detection: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # of what may cost
    interfaces: Mapping[str, float] = field(default_factory=dict)  # bit/s of those that are up


@dataclass(frozen=True, kw_only=True)
class Watch:
    """All of it, of one rank."""

    rank: int
    ranks: int
    local_ranks: int  # on this rank's host; 0: nobody has said
    host: str
    model: str
    shapes: tuple[tuple[int, ...], ...]  # of the gradients that DDP sums, in the model's order
    gradient_bits: int
    micro_batches: int  # in one step
    wanted: int  # steps
    steps: tuple[Step, ...]  # after the first few
    settings: Settings
    models: int = 1  # that were wrapped in DDP; the first is watched
    task: str | None = None  # the kind of task that the model's modules are made for

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Watch:
        """What `to_json` wrote."""
        found: dict[str, Any] = json.loads(text)
        settings = found.pop("settings")
        settings["bucket_bytes"] = tuple(settings["bucket_bytes"])
        steps = tuple(Step(**step) for step in found.pop("steps"))
        shapes = tuple(tuple(shape) for shape in found.pop("shapes"))
        return cls(**found, shapes=shapes, steps=steps, settings=Settings(**settings))


def placed(watches: Sequence[Watch]) -> list[Watch]:
    """In order of rank; where nobody has said how many ranks a host has, they are counted by its name."""
    hosts = Counter(w.host for w in watches)
    return sorted((replace(w, local_ranks=w.local_ranks or hosts[w.host]) for w in watches), key=lambda w: w.rank)


def aligned(watches: Sequence[Watch]) -> list[tuple[Step, ...]]:
    """Steps by rank, as many as all ranks saw: all begin with the same one."""
    count = min(len(w.steps) for w in watches)
    return [w.steps[:count] for w in watches]
