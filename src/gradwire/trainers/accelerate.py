"""Accelerate: `attach` what `prepare` returned, and have `save_state` and `load_state` keep its memories.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
handle = gradwire.trainers.accelerate.attach(accelerator, model, "blockint(bits=8)")
"""

from __future__ import annotations

from typing import Any

from gradwire.core.errors import Incompatible
from gradwire.integrations.ddp import Handle
from gradwire.integrations.ddp import attach as attach_ddp
from gradwire.trainers import rank_files


def attach(accelerator: Any, model: Any, codec: Any = None, **options: Any) -> Handle:
    """Compress the gradients of a prepared model, and save the handle's state with the accelerator's.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        model: what its `prepare` returned.
        codec: as for `gradwire.attach`, and so are `options`.
    """
    if accelerator.num_processes == 1:
        raise Incompatible("attach: Accelerate runs one process, so there is nothing to send; launch several")
    scaler = getattr(accelerator, "scaler", None)
    handle: Handle = attach_ddp(model, codec, **({"scaler": scaler} if scaler is not None else {}) | options)
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: rank_files.save(handle, folder))
    accelerator.register_load_state_pre_hook(lambda models, folder: rank_files.load(handle, folder))
    return handle
