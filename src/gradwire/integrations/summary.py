"""What every integration tells about its engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from gradwire.collectives.meter import Meter
from gradwire.core.registry import to_spec
from gradwire.core.state import Entry
from gradwire.engine import Engine
from gradwire.memory.base import ERROR


def summary(engine: Engine, meter: Meter | None) -> dict[str, Any]:
    """Set-up, bytes, and the norm of what is owed, in all and by parameter."""
    norms = _norms(engine.store.entries.get(ERROR, {}))
    meter = meter or Meter()
    return {
        "codec": engine.codec.spec,
        "memory": to_spec(engine.memory),
        "workers": engine.workers,
        "payload_bytes": meter.payload_bytes,
        "sent_bytes": meter.sent_bytes,
        "node_bytes": meter.node_bytes,
        "residual_norm": math.hypot(*norms.values()) if norms else None,
        "residual_norms": norms,
    }


def _norms(kept: Mapping[str, Entry]) -> dict[str, float]:
    """By parameter; an accelerator is waited for once."""
    if not kept:
        return {}
    found = torch.stack([entry.tensor.norm() for entry in kept.values()]).tolist()
    return dict(zip(kept, found, strict=True))


def steered(engine: Engine) -> dict[str, Any]:
    """What a controller has decided: how many tensors each codec has now, and all changes so far."""
    steering = engine.steering
    return {
        "controller": None if steering is None else steering.controller.spec,
        "levels": None if steering is None else dict(Counter(steering.controller.settings.levels.values())),
        "switches": [] if steering is None else [switch.to_json() for switch in steering.controller.switches],
    }
