"""The Trainer of Hugging Face: a callback that attaches when training begins, and saves with each checkpoint.

trainer = Trainer(model, args, train_dataset=data)
gradwire.trainers.huggingface.compress(trainer, "blockint(bits=8)")
trainer.train()
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwire.core.errors import MissingExtra
from gradwire.integrations.ddp import Handle, attach
from gradwire.trainers import rank_files

try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError as problem:  # pragma: no cover
    raise MissingExtra(
        "gradwire.trainers.huggingface needs transformers: pip install 'gradwire[trainers]'"
    ) from problem

CHECKPOINT = "checkpoint-{step}"  # as the Trainer names its folders


class Compression(TrainerCallback):  # type: ignore[misc]
    """Attaches to what the Trainer wrapped. `handle` is there once training has begun.

    Args:
        trainer: whose model is compressed.
        codec: as for `gradwire.attach`, and so are `options`.
    """

    def __init__(self, trainer: Trainer, codec: Any = None, **options: Any) -> None:
        self.handle: Handle | None = None
        self._trainer, self._codec, self._options = trainer, codec, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.handle = attach(self._trainer.model_wrapped, self._codec, **self._options)
        if state.global_step:
            rank_files.load(self.handle, _resumed(args, state))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.handle is not None:
            rank_files.save(self.handle, Path(args.output_dir) / CHECKPOINT.format(step=state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.handle is not None:
            self.handle.detach()


def _resumed(args: Any, state: Any) -> Path:
    """The folder that training goes on from."""
    told = args.resume_from_checkpoint
    return Path(told) if isinstance(told, str) else Path(args.output_dir) / CHECKPOINT.format(step=state.global_step)


def compress(trainer: Trainer, codec: Any = None, **options: Any) -> Compression:
    """Compress the gradients of a Trainer's model; call this before `train`.

    Args:
        trainer: run by several processes, so that it wraps its model in DDP.
        codec: as for `gradwire.attach`, and so are `options`.
    """
    callback = Compression(trainer, codec, **options)
    trainer.add_callback(callback)
    return callback
