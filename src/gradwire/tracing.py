"""What a codec sends for a given set of tensors, exactly, without sending or computing anything.

The engine's own program is run on meta tensors by the tracing driver, so there is no second formula that could
drift from what the network sees. A codec that cannot run on meta tensors is traced on small random ones instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from gradwire.collectives import trace as driver
from gradwire.collectives.trace import TracedExchange
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError, GradwireError
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.engine import Engine
from gradwire.kernels.random import normal


@dataclass(frozen=True)
class Trace:
    """The exchanges of one worker in one step."""

    codec: str
    workers: int
    elements: int
    exchanges: tuple[TracedExchange, ...]

    @property
    def payload_bytes(self) -> int:
        """What one worker hands to the collectives of its own gradient."""
        return sum(e.payload_bytes for e in self.exchanges)

    @property
    def sent_bytes(self) -> int:
        """What leaves one worker, on both legs."""
        return sum(e.sent_bytes for e in self.exchanges)

    @property
    def bits_per_element(self) -> float:
        """Payload bits per gradient element."""
        return 8 * self.payload_bytes / self.elements if self.elements else 0.0

    @property
    def rounds(self) -> int:
        """Dependent round trips."""
        return 1 + max((e.round for e in self.exchanges), default=-1)


def trace(
    codec: str | Codec,
    tensors: Iterable[tuple[str, Sequence[int]]],
    *,
    workers: int = 4,
    strategy: str | Strategy = "auto",
    compress: str = "matrices",
) -> Trace:
    """Trace one step over the named shapes, all in one unit of compression.

    >>> trace("fp16", [("w", (1000, 10))], workers=4).sent_bytes
    30000
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"trace: `workers` must be a whole number of at least 1, got {workers!r}")
    layout = Layout.of(tensors)
    try:
        exchanges = _run(codec, layout, workers, strategy, compress, torch.device("meta"))
    except GradwireError:
        raise
    except (NotImplementedError, RuntimeError):
        exchanges = _run(codec, layout, workers, strategy, compress, torch.device("cpu"))
    name = codec if isinstance(codec, str) else codec.spec
    return Trace(name, workers, layout.numel, tuple(exchanges))


def _run(
    codec: str | Codec,
    layout: Layout,
    workers: int,
    strategy: str | Strategy,
    compress: str,
    device: torch.device,
) -> list[TracedExchange]:
    engine = Engine(codec, memory="none", strategy=strategy, compress=compress, workers=workers)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = normal(Random().shared("trace"), (layout.numel,), device)
        return driver.run(engine.reduce(x, layout), workers)
