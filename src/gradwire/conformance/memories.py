"""Replicas and memories: all workers hold the same result, and what is left out is not lost."""

from __future__ import annotations

import io

import torch
from torch import Tensor

from gradwire.cluster import VirtualCluster
from gradwire.conformance.check import check, require
from gradwire.conformance.inputs import SEVERAL, Ranks, cluster, gradients, mean_of, normal, sums_in_half
from gradwire.core.codec import Codec
from gradwire.core.errors import Incompatible

STEPS = 12  # where losses would add up


def keeps(codec: Codec) -> bool:
    """Whether it asks for a memory."""
    return codec.traits.memory != "none"


@check(
    "compute the result from what was exchanged alone, not from the worker's own gradient",
    strategies=True,
    workers=[1, 2, 3, 8],
)
def replicas_agree_bit_for_bit(codec: Codec, strategy: str, workers: int) -> None:
    """All workers hold the same result."""
    ranks, grads = Ranks(codec, workers, strategy=strategy), gradients(workers)
    for step in range(3):
        first, *others = ranks.reduce(grads)
        alike = all(first[name].equal(other[name]) for other in others for name in grads)
        require(alike, f"in step {step} the workers hold different results")


class _Ledger:
    """What was sent and what should have been, over all steps."""

    def __init__(self, workers: VirtualCluster) -> None:
        self.workers = workers
        self.sent = {f"p{i}": torch.zeros(s, dtype=torch.float64) for i, s in enumerate(SEVERAL)}
        self.wanted = {name: t.clone() for name, t in self.sent.items()}

    def step(self, seed: int, units: list[list[str]] | None = None) -> None:
        grads = gradients(seed=seed)
        for name, out in self.workers.reduce(grads, units=units).items():
            self.sent[name] += out.double()
            self.wanted[name] += mean_of(grads[name])

    def settle(self, slack: float) -> None:
        """Sum of results + mean of what is owed = sum of mean gradients."""
        for name, sent in self.sent.items():
            owed = mean_of(self.workers.memory(name))
            require(owed.isfinite().all(), f"the memory of {name} is not finite")
            lost = float((sent + owed - self.wanted[name]).abs().max())
            books = torch.allclose(sent + owed, self.wanted[name], rtol=1e-5, atol=slack)
            require(books, f"what was sent and what is owed for {name} miss the gradients by {lost:.3g}")


@check("decode must give what encode_own, or own of reduce, says that others decode", strategies=True)
def error_feedback_loses_nothing_over_many_steps(codec: Codec, strategy: str) -> None:
    """What is sent and what the memories owe add up to the gradients; without a bound error feedback is refused."""
    traits = codec.traits
    if traits.delta is None and traits.omega is None:
        try:
            cluster(codec, memory="error_feedback", strategy=strategy)
        except Incompatible as refused:
            wanted = f"{codec.name} cannot run under error_feedback"
            return require(str(refused).startswith(wanted), f"refused for another reason: {refused}")
        return require(False, "it claims neither delta nor omega, and error feedback took it")
    ledger = _Ledger(cluster(codec, memory="error_feedback", strategy=strategy))
    for step in range(STEPS):
        ledger.step(step)
    coarse = STEPS * 2e-3 if sums_in_half(codec, strategy) else 0  # it rounds on the way, and nobody remembers that
    ledger.settle(2e-3 + coarse)


@check("the error of what is sent must not exceed the gradient: scale the result down, or use memory='none'", keeps)
def memory_does_not_grow_without_bound(codec: Codec) -> None:
    """Over 60 steps the memory stays about as large as it was after 30."""
    workers, sizes = cluster(codec, 2), []
    for step in range(60):
        shapes = (("w", (32, 32)), ("b", (60,)))
        workers.reduce({n: [normal(*s, seed=step * 2 + w) for w in range(2)] for n, s in shapes})
        sizes.append(float(mean_of(workers.memory("w")).norm() + 4 * mean_of(workers.memory("b")).norm()))
    grown = sizes[-1] / max(*sizes[25:30], 1e-30)  # what diverges grows by a factor a step
    require(sizes[-1] <= 2.5 * max(sizes[25:30]), f"the memory grows: by {grown:.3g} from step 30 to step 60")


@check("keep tensors in ctx.state, and nothing on the codec or in the module")
def state_survives_being_saved(codec: Codec) -> None:
    """A run that is saved and loaded goes on as the other one."""
    grads = gradients()
    straight, resumed, fresh = (cluster(codec) for _ in range(3))
    for _ in range(3):
        straight.reduce(grads)
        resumed.reduce(grads)
    fresh.load_state_dicts([_saved(state) for state in resumed.state_dicts()])
    for _ in range(3):
        a, b = straight.reduce(grads), fresh.reduce(grads)
        require(all(a[n].equal(b[n]) for n in grads), "a run that was saved and loaded goes another way")


def _saved(state: dict[str, object]) -> dict[str, object]:
    """As it comes back from a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    found: dict[str, object] = torch.load(file, weights_only=True)
    return found


@check("keep state by parameter, in ctx.state, and never by the position in a unit", keeps, strategies=True)
def regrouping_the_units_keeps_what_is_owed(codec: Codec, strategy: str) -> None:
    """Memories follow the parameters when DDP rebuilds its buckets."""
    ledger = _Ledger(cluster(codec, memory="error_feedback", strategy=strategy))
    groupings = (None, [["p2"], ["p1", "p0"]], [["p2", "p0"], ["p1"]], [["p0"], ["p1"], ["p2"]], None)
    for step, units in enumerate(groupings):
        ledger.step(step, units)
    ledger.settle(1e-2)


def kept_by(workers: VirtualCluster | Ranks, names: list[str]) -> list[Tensor | None]:
    """What is owed, by name and worker."""
    return [m for name in names for m in workers.memory(name)]
