"""`gradwire.doctor`: watch a model from inside a script."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from gradwire.core.registry import Check
from gradwire.diagnosis.causes import UNKNOWN
from gradwire.diagnosis.report import Diagnosis, diagnose
from gradwire.diagnosis.watcher import Watcher
from gradwire.integrations.wrapped import ddp_of, is_sharded, unwrapped


def doctor(model: nn.Module, *, steps: int = 30) -> Doctor:
    """Watch the next steps of a DDP model, and then say why it is not faster: compute, exchange, stragglers, data.

    Nothing is put in the way of gradients: DDP's own clocks are read. On the command line, without a change of the
    script: ``gradwire doctor -- torchrun … train.py``, which also measures what codecs cost on a CPU.

    Args:
        model: wrapped in DistributedDataParallel, compiled or not; all its ranks must call this alike. Of a model of
            `fully_shard` (FSDP2) settings alone are looked at.
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
    Check("doctor").integer("steps", steps, 3)
    if is_sharded(model):
        return Doctor(partial(_of_settings, unwrapped(model)))
    watcher = Watcher(ddp_of(model, "doctor"), steps, called=model)
    return Doctor(lambda: diagnose(watcher.everyone()), lambda: watcher.done)


def _of_settings(model: nn.Module) -> Diagnosis:
    """What can be said of a sharded model before it has made a step."""
    from gradwire.diagnosis.policies import costly_policies  # FSDP2 takes long to load
    from gradwire.integrations.fsdp_parts import reduced_elements

    found = tuple(costly_policies(reduced_elements(model)))
    verdict = (
        "No answer about times: FSDP2 keeps no clocks that could be read, so its steps are not watched. "
        f"{'Settings that cost were found.' if found else 'None of its settings is known to cost.'}"
    )
    return Diagnosis(cause=UNKNOWN, verdict=verdict, settings=found)


class Doctor:
    """What `doctor` returns. Do not make one yourself.

    Args:
        answer: gives it, as far as it is known.
        done: says whether this rank has seen all the steps that were asked for.
    """

    def __init__(self, answer: Callable[[], Diagnosis], done: Callable[[], bool] = lambda: True) -> None:
        self._answer, self._done = answer, done

    @property
    def done(self) -> bool:
        """Whether this rank has seen all the steps that were asked for."""
        return self._done()

    def report(self) -> Diagnosis:
        """The answer, from what the ranks have seen until now. Any rank may ask, alone; printed, it is a page."""
        return self._answer()
