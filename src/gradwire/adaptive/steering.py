"""A controller at work on one worker: what it watches, what it decided, and how all workers come to agree.

Each worker adds up its own gradients over an epoch. At the end the norms of these sums are averaged over the workers in
one small exchange, so that all of them see the same numbers, bit for bit, and decide alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.adaptive.controller import Controller, controllers
from gradwire.adaptive.run import ControllerRun
from gradwire.adaptive.values import Observation, Settings, Switch
from gradwire.core.codec import Codec, codecs
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Program, Sum
from gradwire.core.layout import Layout
from gradwire.core.slots import Entry, Piece
from gradwire.core.state import Store

SUM = "sum"  # of the gradients of this epoch


class Steering:
    """A controller at work in an engine: the sums that it wants to know, its state, and the codecs in force.

    Args:
        controller: what decides. It is not changed, and may steer other engines too.

    Example:
        >>> from gradwire.adaptive import Warmup
        >>> from gradwire.collectives import local
        >>> steering = Steering(Warmup("topk(ratio=0.001)", begin=0.1, epochs=1))
        >>> steering.begin(["weight"])
        >>> steering.spec_of("weight")
        'topk(ratio=0.1)'
        >>> local.run(steering.end_epoch(rate=0.1, next_rate=0.1, workers=2), 2).levels
        {'weight': 'topk(ratio=0.001)'}
        >>> steering.spec_of("weight")
        'topk(ratio=0.001)'
    """

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.codecs = [codecs.build(level) for level in dict.fromkeys(controller.levels)]
        self.specs: Mapping[str, str] = {}  # of the codecs in force, in full, by parameter
        self._run = ControllerRun(controller)
        self._sums = Store()
        # by the parameters of a unit: the sum over its steps of each one's |gradient|², and how many steps
        self._squares: dict[tuple[str, ...], Tensor] = {}
        self._steps: dict[tuple[str, ...], int] = {}

    @property
    def settings(self) -> Settings:
        """What the controller has set for this epoch."""
        return self._run.settings

    @property
    def switches(self) -> tuple[Switch, ...]:
        """All that the controller has changed so far."""
        return self._run.switches

    def begin(self, parameters: Sequence[str]) -> None:
        """Set up the first epoch. A second call, or one after a state was loaded, changes nothing.

        Args:
            parameters: the names of all that are compressed.
        """
        if self.specs:
            return
        if not parameters:
            raise ConfigError(
                f"{self.controller.name}: there is nothing to choose a codec for, as no parameter is a matrix of 1024 "
                "elements or more; pass tensors='all'"
            )
        self._run.start(parameters)
        self._apply()

    def spec_of(self, parameter: str) -> str:
        """The full spec of the codec that a parameter has now.

        Args:
            parameter: its name.
        """
        if parameter not in self.specs:
            raise ConfigError(
                f"{self.controller.name}: was started without {parameter!r}, so it chose no codec for it; begin with "
                f"all parameters that are compressed, here {', '.join(self.specs) or 'none'}"
            )
        return self.specs[parameter]

    def watch(self, x: Tensor, layout: Layout, scale: float) -> None:
        """Add a unit's gradient to the epoch's sums. What is not finite counts as zero.

        Args:
            x: (rows, total), a row for each worker of this process.
            layout: the unit's tensors.
            scale: the loss scale, which is divided out.
        """
        if not self.controller.watches:
            return
        x = (x.detach().float() / scale).nan_to_num(0.0, 0.0, 0.0)
        slot = self._sums.slot(SUM, (layout,) * len(x), layout.numel)
        if slot.current is None:
            slot.turn(x.clone())
        else:
            slot.current.add_(x)
        squares = _norms(list(layout.split(x))).double().square()
        unit = layout.names
        self._squares[unit] = self._squares[unit] + squares if unit in self._squares else squares
        self._steps[unit] = self._steps.get(unit, 0) + 1

    def end_epoch(self, rate: float, next_rate: float, workers: int) -> Program[Settings]:
        """Average what the workers saw, decide, and begin the next epoch's sums.

        Args:
            rate: the learning rate of the last step.
            next_rate: that of the next epoch's first step.
            workers: how many there are in all processes.
        """
        names = sorted({piece.name for piece in self._sums.pieces(SUM)})
        norms = dict.fromkeys(self.specs if self.controller.watches else (), 0.0)  # where there was no gradient
        deviations, whole = dict(norms), 0.0
        if names:
            mean = yield Sum(self._statistics(names) / workers)
            found = mean[0].tolist()
            norms |= zip(names, found[: len(names)], strict=True)
            deviations |= zip(names, found[len(names) : -1], strict=True)
            whole = found[-1]
        seen = Observation(
            epoch=self._run.state.epoch + 1,
            learning_rate=rate,
            next_learning_rate=next_rate,
            norms=norms,
            deviations=deviations,
            steps=max(map(self._steps_of, names), default=0),
            whole_norm=whole,
        )
        settings = self._run.end_epoch(seen)
        self._apply()
        self._sums, self._squares, self._steps = Store(), {}, {}
        return settings

    def _steps_of(self, name: str) -> int:
        return sum(count for unit, count in self._steps.items() if name in unit)

    def _statistics(self, names: Sequence[str]) -> Tensor:
        """Norms of the sums, standard deviations, and the norm of everything."""
        sums: dict[str, list[Tensor]] = {}
        for piece in self._sums.pieces(SUM):  # row by row
            sums.setdefault(piece.name, []).append(piece.entry.tensor.reshape(-1))
        norms = _norms([torch.stack(sums[name]) for name in names]).double()
        steps, squares = torch.zeros_like(norms), torch.zeros_like(norms)
        places = {name: place for place, name in enumerate(names)}
        for unit, count in sorted(self._steps.items()):  # a parameter is in others once DDP has rebuilt its buckets
            where = [places[name] for name in unit]
            steps[:, where] += count
            squares[:, where] += self._squares[unit]
        deviations = (squares / steps - (norms / steps).square()).clamp(min=0).sqrt()
        return torch.cat([norms, deviations, torch.stack([n.norm() for n in norms])[:, None]], 1)

    def _apply(self) -> None:
        full = dict(zip(dict.fromkeys(self.controller.levels), (c.spec for c in self.codecs), strict=True))
        self.specs = {name: full[level] for name, level in self.settings.levels.items()}

    def state_dict(self, row: int = 0) -> dict[str, Any]:
        """Everything that concerns one worker, the unfinished epoch included.

        Args:
            row: the worker's place in this process.
        """
        sums = {p.name: p.entry.tensor.clone() for p in self._sums.pieces(SUM) if p.row == row}
        return {
            "controller": self._run.state_dict(),
            "sums": sums,
            "units": [
                {"names": list(unit), "squares": self._squares[unit][row].tolist(), "steps": count}
                for unit, count in sorted(self._steps.items())  # units run side by side, and begin in any order
            ],
        }

    def load_state_dict(self, saved: Mapping[str, Any], row: int = 0, rows: int = 1) -> None:
        """Continue from there. The workers of a process are loaded in order.

        Args:
            saved: what `state_dict` returned for one worker.
            row: the worker's place in this process.
            rows: how many workers this process has.
        """
        if row == 0:
            self._run.load_state_dict(saved["controller"])
            self._apply()
            self._sums, self._squares, self._steps = Store(), {}, {}
        for name, tensor in saved["sums"].items():
            self._sums.put_piece(SUM, Piece(row, name, Entry(tensor.clone())))
        device = next((tensor.device for tensor in saved["sums"].values()), None)
        for unit in saved["units"]:
            names = tuple(unit["names"])
            squares = torch.tensor(unit["squares"], dtype=torch.float64, device=device)
            known = self._squares.setdefault(names, squares.new_zeros((rows, len(names))))
            known[row] = squares
            self._steps[names] = unit["steps"]


def _norms(pieces: Sequence[Tensor]) -> Tensor:
    """(rows, pieces), of pieces of shape (rows, numel)."""
    found = torch._foreach_norm([row for piece in pieces for row in piece])
    return torch.stack(found).view(len(pieces), -1).t()


def steer(controller: str | Controller | None, codec: str | Codec | None) -> tuple[Steering | None, list[Codec]]:
    """What steers, if anything, and the codecs that may run; the first stands for all.

    Args:
        controller: a controller or its spec; None for a codec that never changes.
        codec: a codec or its spec. Beside a controller it may be left out, or be one of the controller's.

    Example:
        >>> steering, choices = steer("accordion(low='topk(ratio=0.1)', high='topk')", None)
        >>> steering.controller.name, [codec.spec for codec in choices]
        ('accordion', ['topk(ratio=0.1)', 'topk'])
        >>> steer(None, "topk")[0] is None
        True
    """
    given = codecs.build(codec) if isinstance(codec, str) else codec
    if controller is None:
        if given is None:
            raise ConfigError("gradwire: pass a codec such as 'topk(ratio=0.01)', or a controller that chooses one")
        return None, [given]
    steering = Steering(controllers.build(controller) if isinstance(controller, str) else controller)
    if given is not None and given not in steering.codecs:
        known = ", ".join(c.spec for c in steering.codecs)
        raise ConfigError(
            f"gradwire: the controller chooses among {known}, and codec {given.spec} is none of them; leave it out"
        )
    return steering, steering.codecs
