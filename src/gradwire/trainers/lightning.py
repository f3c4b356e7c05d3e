"""Lightning: a callback.

    trainer = Trainer(strategy="ddp", devices=4, callbacks=[Compression("blockint(bits=8)")])

Lightning's checkpoint is one file, which rank 0 writes: all ranks' states are gathered for it.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gradwire.core.errors import Incompatible, MissingExtra
from gradwire.integrations.ddp import Handle, attach

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError as problem:  # pragma: no cover
    raise MissingExtra("gradwire.trainers.lightning needs lightning: pip install 'gradwire[trainers]'") from problem

KEY = "gradwire"


class Compression(Callback):  # type: ignore[misc]
    """Attaches to what Lightning's strategy wrapped. `handle` is there once training has begun.

    Args:
        codec: as for `gradwire.attach`, and so are `options`.
    """

    def __init__(self, codec: Any = None, **options: Any) -> None:
        self.handle: Handle | None = None
        self._codec, self._options = codec, options
        self._loaded: list[dict[str, Any]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.world_size == 1:
            raise Incompatible("attach: Lightning runs one process, so there is nothing to send; use more devices")
        self.handle = attach(trainer.strategy.model, self._codec, **self._options)
        if self._loaded:
            self.handle.load_state_dict(self._loaded)  # of all: it finds its own, or puts them together
            self._loaded = []

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.handle is None:
            return
        states: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self.handle.state_dict(), states, dst=0)
        if states is not None:
            checkpoint[KEY] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self._loaded = checkpoint.get(KEY, [])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.handle is not None:
            self.handle.detach()
