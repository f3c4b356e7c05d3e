"""Where a handle's exchanges travel: apart from DDP's and the user's own, and in one order."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gradwire.collectives.executor import Executor


@dataclass(frozen=True)
class Channel:
    """A copy of a process group that nobody else uses, and the one thread that uses it."""

    group: dist.ProcessGroup
    executor: Executor


_channels: weakref.WeakKeyDictionary[dist.ProcessGroup, Channel] = weakref.WeakKeyDictionary()


def channel_over(group: dist.ProcessGroup, device: torch.device) -> Channel:
    """The channel over the ranks of `group`, with its time-out; made once, all handles on the group share it."""
    if group not in _channels:
        ranks = dist.get_process_group_ranks(group)
        options = getattr(group._get_backend(device), "options", None)
        copy = dist.new_group(
            ranks=ranks,
            timeout=getattr(options, "_timeout", None),
            backend=dist.get_backend(group),
            # the ranks outside a subgroup do not attach, so they cannot take part in making its copy
            use_local_synchronization=len(ranks) < dist.get_world_size(),
        )
        _channels[group] = Channel(copy, Executor("gradwire", device))
        weakref.finalize(group, _channels[group].executor.close)
    return _channels[group]
