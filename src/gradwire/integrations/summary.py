"""What every integration tells about its engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from gradwire.collectives.meter import Meter
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.memory.base import ERROR


def summary(engine: Engine, meter: Meter | None) -> dict[str, Any]:
    """Set-up, bytes, and the norm of what is owed."""
    errors = [e.tensor.norm() for e in engine.store.entries.get(ERROR, {}).values()]
    meter = meter or Meter()
    return {
        "codec": engine.codec.spec,
        "memory": to_spec(engine.memory),
        "workers": engine.workers,
        "payload_bytes": meter.payload_bytes,
        "sent_bytes": meter.sent_bytes,
        "node_bytes": meter.node_bytes,
        "residual_norm": float(torch.stack(errors).norm()) if errors else None,
    }


def steered(engine: Engine) -> dict[str, Any]:
    """What a controller has decided: how many tensors each codec has now, and all changes so far."""
    steering = engine.steering
    return {
        "controller": None if steering is None else steering.controller.spec,
        "levels": None if steering is None else dict(Counter(steering.levels.values())),
        "switches": [] if steering is None else [switch.to_json() for switch in steering.controller.switches],
    }
