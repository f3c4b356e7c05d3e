"""What a rank knows of itself before the first step: model, host, cores, cards, environment."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.diagnosis.settings import FLAGS
from gradwire.planner.own_kind import guess

INTERFACES = Path("/sys/class/net")
VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *FLAGS)
MEGABIT = 1e6


def of_rank(model: DistributedDataParallel) -> dict[str, Any]:
    """Fields of a `Watch`, and of its `Settings` under that name."""
    named = model.module.named_parameters()
    reduced = [p for n, p in named if p.requires_grad and n not in model.parameters_to_ignore]
    return {
        "host": socket.gethostname(),
        "local_ranks": int(os.environ.get("LOCAL_WORLD_SIZE", 0)),  # by torchrun
        "model": type(model.module).__name__,
        "task": guess(model.module),
        "shapes": tuple(tuple(p.shape) for p in reduced),
        "gradient_bits": max((8 * p.element_size() for p in reduced), default=32),
        "settings": {
            "backend": dist.get_backend(model.process_group),
            "device": reduced[0].device.type if reduced else "cpu",
            "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
            "interfaces": interfaces(),
        },
    }


def interfaces(folder: Path = INTERFACES) -> dict[str, float]:
    """Bit/s of the network cards that are up and say how fast they are."""
    found = {}
    for card in sorted(folder.iterdir()) if folder.is_dir() else ():
        with suppress(OSError, ValueError):
            speed = int((card / "speed").read_text())
            if speed > 0 and (card / "operstate").read_text().strip() == "up":
                found[card.name] = MEGABIT * speed
    return found
