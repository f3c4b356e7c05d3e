"""`attach(..., dry_run=True)`: what would be sent and kept, without sending or keeping anything.

Units are DDP's buckets as they will be after its first step, when gradients arrive about in the reverse of the model's
order; or what a sharded model reduces at once. The engine's own program is traced on them (`gradwire.tracing`), so
there is no second formula.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.core.errors import ConfigError
from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.core.registry import Check, to_spec
from gradwire.core.units import format_bytes
from gradwire.engine import Engine
from gradwire.integrations.parameters import reduced_parameters
from gradwire.integrations.ways import DDP, Way
from gradwire.integrations.window import sending
from gradwire.integrations.wrapped import unwrapped
from gradwire.planner.simulated_buckets import CAP_BYTES, ELEMENT_BYTES, FIRST_BYTES, buckets
from gradwire.tracing import trace_unit

SHOWN = 12  # units in the text


@dataclass(frozen=True, kw_only=True)
class DryUnit:
    """One unit of compression: bytes of one rank, in one step."""

    tensors: tuple[str, ...]
    elements: int
    compressed: int  # elements that the codec gets; vectors and tiny tensors travel as they are
    sent_bytes: int
    plain_bytes: int  # that is sent of it without a codec
    kept_bytes: int  # from step to step: error memory and what the codec keeps, two buffers of each
    message_bytes: int  # room for what is sent and received while it is reduced


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What `attach` would do. As text, a table of its units; `dataclasses.asdict` makes it ready for JSON."""

    codec: str
    memory: str
    strategy: str
    mode: str
    workers: int
    units: tuple[DryUnit, ...]
    exact: bool  # False: the size depends on the data, and this is of Gaussian noise
    framework: str = "DDP"  # that reduces without a codec

    @property
    def sent_bytes(self) -> int:
        """By one rank, in one step."""
        return sum(unit.sent_bytes for unit in self.units)

    @property
    def plain_bytes(self) -> int:
        """What is sent without a codec."""
        return sum(unit.plain_bytes for unit in self.units)

    @property
    def ratio(self) -> float | None:
        """How many times fewer bytes than without a codec; None where nothing is sent."""
        return self.plain_bytes / self.sent_bytes if self.sent_bytes else None

    @property
    def kept_bytes(self) -> int:
        """Memory for what is kept from step to step, on each rank."""
        return sum(unit.kept_bytes for unit in self.units)

    @property
    def message_bytes(self) -> int:
        """Room for messages while the largest unit is reduced. Codecs need some room to work beside that."""
        return max((unit.message_bytes for unit in self.units), default=0)

    def __str__(self) -> str:
        about = "" if self.exact else " (about: it depends on the data; of Gaussian noise)"
        lines = [
            f"dry run: {self.codec}, memory {self.memory}, strategy {self.strategy}, mode {self.mode}, "
            f"{self.workers} ranks",
            f"each rank would send {sending(self.sent_bytes, self.plain_bytes, self.framework)}{about}, in "
            f"{len(self.units)} unit{'s' * (len(self.units) != 1)}",
            f"and keep {format_bytes(self.kept_bytes)} in memory, with room for {format_bytes(self.message_bytes)} of "
            "messages",
            f"{'unit':>4}  {'tensors':>7}  {'elements':>12}  {'compressed':>12}  {'sent':>9}  {'kept':>9}",
        ]
        for i, unit in enumerate(self.units[:SHOWN]):
            lines.append(
                f"{i:>4}  {len(unit.tensors):>7}  {unit.elements:>12,}  {unit.compressed:>12,}  "
                f"{format_bytes(unit.sent_bytes):>9}  {format_bytes(unit.kept_bytes):>9}"
            )
        if len(self.units) > SHOWN:
            lines.append(f"and {len(self.units) - SHOWN} more")
        return "\n".join(lines)


def dry_run(model: nn.Module, make: Callable[..., Engine], mode: str, workers: int | None) -> DryRun:
    """What an engine would do for a model.

    Args:
        model: wrapped in DDP or not, compiled or not.
        make: makes the engine, for `workers` ranks.
        mode: as for `attach`.
        workers: how many ranks; None: those of the process group.
    """
    found = unwrapped(model)
    if not isinstance(found, nn.Module):
        raise ConfigError(f"attach: a dry run needs a module, got {type(found).__name__}")
    ranks = _workers(found, workers)
    if isinstance(found, DistributedDataParallel):
        parameters: Mapping[str, Tensor] = reduced_parameters(found)
        cap = found.bucket_bytes_cap
    else:
        parameters = {name: p for name, p in found.named_parameters() if p.requires_grad}
        cap = CAP_BYTES
    for name, parameter in parameters.items():
        check_gradient(name, parameter)
    engine = make(workers=ranks)
    by_bucket = mode == "overlap" or engine.lossless
    units = [{n: parameters[n] for n in names} for names in _units(parameters, by_bucket, cap)]
    return dry_run_of(engine, partial(make, workers=ranks), units, mode, DDP)


def dry_run_of(
    engine: Engine, make: Callable[[], Engine], units: Sequence[Mapping[str, Tensor]], mode: str, way: Way
) -> DryRun:
    """What an engine would do with these units.

    Args:
        engine: of this rank.
        make: makes another one like it.
        units: gradients by parameter name.
        mode: as the handle will call it.
        way: how they are reduced.
    """

    def fresh() -> Engine:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when the first was made
            other = make()
        other.begin(Layout.of((n, g.shape) for unit in units for n, g in unit.items()))
        return other

    found = []
    for unit in units:
        layout = Layout.of((n, g.shape) for n, g in unit.items())
        traced = trace_unit(fresh, layout, next(iter(unit.values())).dtype, way.program)
        found.append(
            DryUnit(
                tensors=tuple(unit),
                elements=layout.numel,
                compressed=engine.picked(layout).numel,
                sent_bytes=traced.sent_bytes,
                plain_bytes=way.plain_bytes(unit.values(), engine.workers),
                kept_bytes=traced.kept_bytes,
                message_bytes=traced.message_bytes,
            )
        )
    return DryRun(
        codec=engine.codec.spec,
        memory=to_spec(engine.memory),
        strategy=engine.strategy_spec,
        mode=mode,
        workers=engine.workers,
        units=tuple(found),
        exact=engine.codec.traits.fixed_size,
        framework=way.framework,
    )


def _workers(model: Any, workers: int | None) -> int:
    if workers is not None:
        Check("attach").integer("workers", workers, 1)
        return workers
    if isinstance(model, DistributedDataParallel):
        return dist.get_world_size(model.process_group)
    if not dist.is_initialized():
        raise ConfigError("attach: without a process group, say for how many ranks the dry run is: workers=8")
    return dist.get_world_size()


def _units(parameters: Mapping[str, Tensor], by_bucket: bool, cap: int) -> list[tuple[str, ...]]:
    """The tensors of each unit: DDP's buckets, or all of a dtype."""
    dtypes: dict[torch.dtype, list[str]] = {}
    for name, parameter in parameters.items():
        dtypes.setdefault(parameter.dtype, []).append(name)
    if not by_bucket:
        return [tuple(names) for names in dtypes.values()]
    found = []
    for dtype, names in dtypes.items():
        shapes = [tuple(parameters[n].shape) for n in names]
        scale = ELEMENT_BYTES / dtype.itemsize  # buckets are counted in elements of four bytes there
        filled = buckets(shapes, first_bytes=int(FIRST_BYTES * scale), cap_bytes=int(cap * scale))
        found += [tuple(names[i] for i in bucket) for bucket in filled]
    return found
