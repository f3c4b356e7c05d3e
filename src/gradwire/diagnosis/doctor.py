"""`gradwire.doctor`: watch a model from inside a script."""

from __future__ import annotations

from torch import nn

from gradwire.core.registry import Check
from gradwire.diagnosis.report import Diagnosis, diagnose
from gradwire.diagnosis.watcher import Watcher
from gradwire.integrations.wrapped import ddp_of


def doctor(model: nn.Module, *, steps: int = 30) -> Doctor:
    """Watch the next steps of a DDP model, and then say why it is not faster: compute, exchange, stragglers, data.

    Nothing is put in the way of gradients: DDP's own clocks are read. On the command line, without a change of the
    script: ``gradwire doctor -- torchrun … train.py``, which also measures what codecs cost on a CPU.

    Args:
        model: wrapped in DistributedDataParallel, compiled or not; all its ranks must call this alike.
        steps: to be measured, after the first few.

    Returns:
        What has the answer, by and by.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # with torchrun: no arguments
        >>> model = DistributedDataParallel(torch.nn.Linear(4, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> watched = gradwire.doctor(model, steps=5)
        >>> for _ in range(20):
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     optimizer.step()
        >>> watched.done, watched.report().account.ranks
        (True, 1)
        >>> dist.destroy_process_group()
    """
    ddp = ddp_of(model, "doctor")
    Check("doctor").integer("steps", steps, 3)
    return Doctor(Watcher(ddp, steps, called=model))


class Doctor:
    """What `doctor` returns. Do not make one yourself."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    @property
    def done(self) -> bool:
        """Whether this rank has seen all the steps that were asked for."""
        return self._watcher.done

    def report(self) -> Diagnosis:
        """The answer, from what the ranks have seen until now. Any rank may ask, alone; printed, it is a page."""
        return diagnose(self._watcher.everyone())
