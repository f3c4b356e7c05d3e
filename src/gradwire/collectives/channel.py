"""Where a session's exchanges travel: apart from DDP's and the user's own, and in one order.

A channel has lanes. Each is a copy of the process group that nobody else uses, and the one thread that uses it. Units
of compression take the lanes in turn, so one is encoded or decoded while another is on the wire. Within a lane
exchanges start in the order of the units, which is the same on all ranks; between lanes no order is needed, as they
share nothing.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist

from gradwire.collectives.alarm import Alarm, Store
from gradwire.collectives.c10d import ProcessGroupDriver
from gradwire.collectives.executor import Executor
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Team

T = TypeVar("T")
LANES = 2  # one on the wire, one at work


@dataclass(frozen=True)
class Lane:
    """A process group, and the one thread that talks to it."""

    group: dist.ProcessGroup
    executor: Executor
    timeout: timedelta | None = None
    _teams: dict[tuple[Team, ...], dict[Team, dist.ProcessGroup]] = field(default_factory=dict)

    def driver(self, teams: Sequence[Team] = ()) -> ProcessGroupDriver:
        """What drives programs over this lane. `teams` are those that this rank is in; all ranks make them alike."""
        key = tuple(teams)
        if key and key not in self._teams:
            _level_group_counts(self.group)
            self._teams[key] = {team: self._group_of(team) for team in key}
        return ProcessGroupDriver(self.group, self._teams.get(key))

    def _group_of(self, team: Team) -> dist.ProcessGroup:
        ranks = dist.get_process_group_ranks(self.group)
        group: dist.ProcessGroup = dist.new_group(
            ranks=[ranks[i] for i in team.ranks],
            timeout=self.timeout,
            backend=dist.get_backend(self.group),
            use_local_synchronization=True,  # each rank is in one team of a kind, and makes no other
        )
        return group


_channels: weakref.WeakKeyDictionary[dist.ProcessGroup, list[Lane]] = weakref.WeakKeyDictionary()


def lanes_over(group: dist.ProcessGroup, device: torch.device) -> list[Lane]:
    """The lanes over the ranks of `group`, with its time-out; made once, all sessions on the group share them.

    On an accelerator there is one: its collectives run in an order of their own on one stream.
    """
    if group not in _channels:
        count = LANES if device.type == "cpu" else 1
        alarm = _alarm(group)
        _channels[group] = [_lane(group, device, i, alarm) for i in range(count)]
        for lane in _channels[group]:
            weakref.finalize(group, lane.executor.close).atexit = False  # executors see to that themselves
    return _channels[group]


def _alarm(group: dist.ProcessGroup) -> Alarm:
    """What the ranks of the group tell each other by."""
    name = _everyones(group, secrets.token_hex(8))[0]  # torchrun may keep its store, and notes in it, over a restart
    store = cast(Store, dist.distributed_c10d._get_process_group_store(group))  # torch's stub knows no `clone`
    return Alarm(store, f"gradwire-{name}", dist.get_rank(group), dist.get_world_size(group))


def _lane(group: dist.ProcessGroup, device: torch.device, index: int, alarm: Alarm) -> Lane:
    ranks = dist.get_process_group_ranks(group)
    timeout = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
    subgroup = len(ranks) < dist.get_world_size()
    if subgroup:
        _level_group_counts(group)
    copy = dist.new_group(
        ranks=ranks,
        timeout=timeout,
        backend=dist.get_backend(group),
        # the ranks outside a subgroup do not attach, so they cannot take part in making its copy
        use_local_synchronization=subgroup,
    )
    return Lane(copy, Executor(f"gradwire-{index}", device, alarm), timeout)


def _everyones(group: dist.ProcessGroup, value: T) -> list[T]:
    """What each rank of the group handed in, in order of rank."""
    values: list[T] = [value] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def check_agreement(group: dist.ProcessGroup, set_up: str, who: str = "attach") -> None:
    """Ranks that compress differently would wait for each other, or mix up each other's bytes."""
    set_ups = _everyones(group, set_up)
    for rank, other in enumerate(set_ups):
        if other != set_ups[0]:
            raise Incompatible(
                f"{who}: the ranks disagree. Rank 0 has {set_ups[0]}; rank {rank} has {other}. "
                f"Call {who} with the same arguments on all ranks."
            )


def _level_group_counts(group: dist.ProcessGroup) -> None:
    """Let all ranks have counted equally many groups.

    With local synchronisation torch names a group by its ranks and a number: of the groups its maker is in, or, since
    2.14, of those it helped to make. Ranks whose numbers differ would wait for each other under other names, for ever.
    """
    world = dist.distributed_c10d._world
    mine = world.group_count if torch.__version__ >= "2.14" else len(world.pg_names)
    for _ in range(max(_everyones(group, mine)) - mine):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
