"""Local steps: each worker trains by itself, and every H steps the workers average what they changed, compressed.

    local = LocalSteps(model, optimizer, "qsparse(ratio=0.01)", steps=8)
    for x, y in data:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        local.step()

The model is a plain module, replicated on all ranks, not wrapped in DDP. Every H-th call reduces the difference between
the anchor, the parameters that all ranks had after the last exchange, and the parameters of now, through the codec and
its memory. Then all ranks have, bit for bit, the same new parameters: anchor − mean difference. The difference has the
learning rate in it, so what the memory keeps needs no rescaling when the rate changes. With one step and plain SGD this
is gradient compression with the learning rate folded in.

Parameters start as rank 0's. Buffers (running statistics, say) and the optimizer's state are left to each rank. If a
rank's parameters are not finite, all ranks get non-finite parameters, and the memories stay as they were.

Basu et al., Qsparse-local-SGD, NeurIPS 2019, arXiv:1906.02367, algorithm 1 (the synchronous one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError, Incompatible, StateMismatch
from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.core.registry import to_spec
from gradwire.core.stays_here import StaysHere
from gradwire.engine import Engine
from gradwire.memory.base import Memory
from gradwire.saved_state import check_whole, sealed
from gradwire.session import Session, group_of, warn_if_idle


@dataclass
class _Unit:
    """Parameters of one dtype, in the model's order, and what all ranks had in common last."""

    layout: Layout
    parameters: list[nn.Parameter]
    anchor: Tensor

    def flat(self) -> Tensor:
        """The parameters as they are now."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters])

    def move_to(self, flat: Tensor) -> None:
        """Make `flat` the parameters of this rank, and the anchor."""
        pieces = [t.view(p.shape) for t, p in zip(self.layout.split(flat), self.parameters, strict=True)]
        torch._foreach_copy_([p.detach() for p in self.parameters], pieces)
        self.anchor = flat


class LocalSteps(StaysHere):
    """Let each worker train by itself, and average what the workers changed every few steps, compressed.

    The model is a plain module, not wrapped in DDP. Parameters start as rank 0's.

    Args:
        model: a plain module; all ranks of the group must call this alike.
        optimizer: the one that trains it, on this rank alone.
        codec: a codec or its spec, such as ``"qsparse(ratio=0.01)"``.
        steps: H, the number of local steps between two exchanges.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, or a strategy or its spec.
        tensors: ``"matrices"`` sends vectors and tiny tensors as they are; ``"all"`` compresses them too.
        seed: of all randomness, the same on all ranks.
        process_group: the ranks that train together; None for all.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> local = gradwire.LocalSteps(model, optimizer, "qsparse(ratio=0.01)", steps=2)
        >>> for _ in range(4):
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     optimizer.step()
        ...     print(local.step())  # every second call exchanges
        False
        True
        False
        True
        >>> local.stats()["steps"]
        4
        >>> local.load_state_dict(local.state_dict())
        >>> local.sync()  # exchange now: at the end of the training
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        codec: str | Codec,
        *,
        steps: int,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        tensors: str = "matrices",
        seed: int = 0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ConfigError(f"LocalSteps: `steps` must be a whole number of at least 1, got {steps!r}")
        trained, self._frozen = _parameters(model, optimizer)
        group = group_of(process_group, "LocalSteps")
        self.steps = steps
        self.engine = Engine(
            codec,
            memory=memory,
            strategy=strategy,
            tensors=tensors,
            seed=seed,
            ranks=(dist.get_rank(group),),
            workers=dist.get_world_size(group),
        )
        if self.engine.memory.by_learning_rate:
            raise Incompatible(
                f"LocalSteps: memory {to_spec(self.engine.memory)!r} follows the learning rate, which the difference "
                "of parameters has in it already. Use memory='error_feedback'."
            )
        self._taken = 0  # local steps
        self._units = _units(trained)
        warn_if_idle(self.engine, "local steps are all there is", stacklevel=2)
        model_parts = ", ".join(f"{u.layout.numel} of {u.anchor.dtype} ({u.layout.id})" for u in self._units)
        set_up = f", local steps {steps}, parameters {model_parts}"
        device = self._units[0].anchor.device
        self._session = Session(self.engine, group, device, who="LocalSteps", set_up=set_up)
        if not self._session.alone:
            self._start_from_first_rank(model)

    def _start_from_first_rank(self, model: nn.Module) -> None:
        """Replicas must start equal; parameters that are not trained, too."""
        with torch.no_grad():
            for unit in _units(dict(model.named_parameters())):
                self._session.broadcast(unit.anchor)
                unit.move_to(unit.anchor)
            for unit in self._units:
                unit.anchor = unit.flat()

    # ---------------------------------------------------------------- what users call

    def step(self) -> bool:
        """Count one local step, and exchange if it is time; True if it did. Call it after ``optimizer.step()``."""
        self._taken += 1
        if self._taken % self.steps:
            return False
        self.sync()
        return True

    def sync(self) -> None:
        """Exchange now. All ranks must call this: at the end of a training, say, when steps are left over."""
        self._session.raise_error()
        thawed = [name for name, p in self._frozen.items() if p.requires_grad]
        if thawed:
            raise Incompatible(
                f"LocalSteps: {thawed[0]!r} requires a gradient by now and did not at the beginning, so the ranks' "
                "copies of it differ; make a new LocalSteps when parameters are unfrozen"
            )
        with torch.no_grad():
            if self._session.alone:
                for unit in self._units:
                    unit.anchor = unit.flat()
                return
            self._session.begin_step()
            differences = [unit.anchor - unit.flat() for unit in self._units]
            for unit, difference in zip(self._units, differences, strict=True):
                self._session.reduce(difference, unit.layout, difference)
            self._session.commit()
            self._session.wait()
            for unit, mean in zip(self._units, differences, strict=True):
                unit.move_to(unit.anchor - mean)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values. Save one file for each rank.

        Between two exchanges the ranks' models differ: save each rank's model and optimizer beside it.
        """
        return sealed(self._session.state_dict() | {"taken": self._taken, "anchor": self._anchors()})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state. The model's parameters are not touched: load them, too.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        check_whole([state] if isinstance(state, Mapping) else state)
        first = state if isinstance(state, Mapping) else state[0] if state else {}
        saved = {n: (t.shape, t.dtype) for n, t in first.get("anchor", {}).items()}
        ours = {n: (t.shape, t.dtype) for n, t in self._anchors().items()}
        different = sorted(n for n in saved.keys() | ours.keys() if saved.get(n) != ours.get(n))
        if different and first:
            name = different[0]
            raise StateMismatch(
                f"LocalSteps: this state holds {_described(saved.get(name))} for {name!r}, and this model has "
                f"{_described(ours.get(name))}; load the state that was saved with this model"
            )
        self._session.load_state_dict(state)
        for unit in self._units:
            flat = torch.cat([first["anchor"][name].reshape(-1) for name in unit.layout.names])
            unit.anchor = flat.to(unit.anchor.device)
        self._taken = first["taken"]

    def stats(self) -> dict[str, Any]:
        """Tell what has happened: bytes since this was made, steps and exchanges since the training began."""
        found = self._session.stats()
        return found | {
            "steps": self._taken,
            "syncs": found["steps"],
            "skipped_syncs": found["skipped_steps"],
            "sent_bytes_per_sync": found["sent_bytes_per_step"],
        }

    def _anchors(self) -> dict[str, Tensor]:
        return {
            name: piece.view(p.shape)
            for unit in self._units
            for name, piece, p in zip(unit.layout.names, unit.layout.split(unit.anchor), unit.parameters, strict=True)
        }


def _described(tensor: tuple[torch.Size, torch.dtype] | None) -> str:
    return "nothing" if tensor is None else f"{tensor[1]}{list(tensor[0])}"


def _parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """The trained parameters and the frozen ones, in the model's order; refuses what cannot be kept in step."""
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise Incompatible(
            f"LocalSteps: the model is wrapped in {type(model).__name__}, which combines gradients in every step by "
            "itself. Pass the module inside, or use gradwire.attach for compression in every step."
        )
    named = dict(model.named_parameters())
    trained = {n: p for n, p in named.items() if p.requires_grad}
    if not trained:
        raise Incompatible(f"LocalSteps: {type(model).__name__} has no parameters that require a gradient")
    for name, parameter in named.items():
        if isinstance(parameter, nn.UninitializedParameter):
            raise Incompatible(f"LocalSteps: {name!r} has no shape yet; run the model once before")
    for name, parameter in trained.items():
        check_gradient(name, parameter)
    devices = sorted({str(p.device) for p in named.values()})
    if len(devices) > 1:
        raise Incompatible(f"LocalSteps: the model must be on one device, and is on {', '.join(devices)}")
    known = {id(p) for p in named.values()}
    strangers = sum(id(p) not in known for g in optimizer.param_groups for p in g["params"])
    if strangers:
        raise Incompatible(
            f"LocalSteps: the optimizer trains {strangers} parameters that are not the model's, and nobody would keep "
            "them in step. Make the optimizer from the model's parameters."
        )
    return trained, {n: p for n, p in named.items() if n not in trained}


def _units(named: Mapping[str, nn.Parameter]) -> list[_Unit]:
    """One unit of compression a dtype, anchored at the parameters of now."""
    by_dtype: dict[torch.dtype, dict[str, nn.Parameter]] = {}
    for name, parameter in named.items():
        by_dtype.setdefault(parameter.dtype, {})[name] = parameter
    units = []
    for members in by_dtype.values():
        layout = Layout.of((n, p.shape) for n, p in members.items())
        units.append(_Unit(layout, list(members.values()), torch.empty(0)))
        units[-1].anchor = units[-1].flat()
    return units
