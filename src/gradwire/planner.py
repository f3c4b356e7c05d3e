"""The front door to predictions, for any model and any codec: `predict`, `advise`, `whatif`.

Codecs and models of the catalogue are answered from shipped traces, without torch. What is not among them, your own
codec or model, is traced with torch when first asked for, and kept in a cache.
"""

from __future__ import annotations

from typing import Any

from gradwire.core.baselines import DDP
from gradwire.perf import advisor
from gradwire.perf import model as perf
from gradwire.perf import whatif as sweeps
from gradwire.perf.advisor import Advice
from gradwire.perf.cluster import check_gpus
from gradwire.perf.model import Prediction
from gradwire.perf.whatif import Sweep
from gradwire.perf.workload import OVERLAP, Workload, shipped


def predict(**setup: Any) -> Prediction:
    """The step of one model with one codec on one cluster; see `gradwire.perf.model.predict` for all that can be said.

    >>> import gradwire
    >>> half = gradwire.predict(model="resnet50", batch=64, gpus=16, bandwidth="10gbit", codec="fp16")
    >>> half.step_seconds < gradwire.predict(model="resnet50", batch=64, gpus=16, bandwidth="10gbit").step_seconds
    True
    """
    return perf.predict(**setup, workload=_own(**setup))


def advise(**setup: Any) -> Advice:
    """Which codec, if any, for a set-up: all of them ranked, and what would change the answer."""
    return advisor.advise(**setup, predict=predict)


def whatif(**question: Any) -> Sweep:
    """Step times while one or two quantities are swept."""
    return sweeps.whatif(**question, predict=predict)


def _own(
    *,
    model: str,
    gpus: int,
    codec: str = "none",
    gpus_per_node: int = 1,
    strategy: str = "auto",
    mode: str = OVERLAP,
    **_: Any,
) -> Workload | None:
    """The workload of a model or codec that is not shipped; None for those that are."""
    wish = "auto" if strategy in (perf.HIERARCHICAL, perf.SERVER) else strategy
    if ":" not in model and (shipped().has(model, codec, wish) or model not in shipped().models()):
        return None  # shipped, or a name that nobody knows: the answer says so
    from gradwire import workloads

    check_gpus(gpus, gpus_per_node)
    traces = workloads.own(model, codec, wish)
    spec = traces.codecs()[0]
    peers = gpus // gpus_per_node if strategy == perf.HIERARCHICAL else gpus
    return traces.workload(model, spec, wish, OVERLAP if spec in DDP else mode, max(2, peers))
