"""The front door to predictions, for any model and any codec: `predict`, `advise`, `whatif`.

Codecs and models of the catalogue are answered from shipped traces, without torch. What is not among them, your own
codec or model, is traced with torch when first asked for, and kept in a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwire.core.baselines import DDP, MAX_LOSS
from gradwire.planner import advisor, sweeps
from gradwire.planner import model as perf
from gradwire.planner.advisor import Advice
from gradwire.planner.cluster import check_gpus
from gradwire.planner.model import Prediction
from gradwire.planner.profile import Profile
from gradwire.planner.sweeps import Sweep
from gradwire.planner.workload import OVERLAP, Workload, shipped


def predict(
    *,
    model: str,
    batch: int,
    gpus: int,
    bandwidth: str | float,
    codec: str = "none",
    gpus_per_node: int = 1,
    strategy: str = "auto",
    mode: str = "overlap",
    hardware: str | Profile = "h200",
    latency: float | None = None,
    accumulate: int = 1,
    compute_speed: float = 1.0,
    encode_speed: float = 1.0,
    ratio: float = 1.0,
    backward: float | None = None,
    sums: str | None = None,
    switch: str | float | None = None,
) -> Prediction:
    """Predict the step of one model with one codec on one cluster.

    Args:
        model: a model's name, such as ``"resnet50"``, or ``"module:factory"`` for your own.
        batch: samples of one GPU in one step (in one micro-batch, with `accumulate`).
        gpus: the number of GPUs in all.
        bandwidth: of a node's network card, in one direction: ``"10gbit"``, or bit/s.
        codec: a codec's spec. ``"none"``, ``"fp16"`` and ``"bf16"`` stand for DDP itself, with gradients of that width.
        gpus_per_node: GPUs in one node; they share its network card.
        strategy: how payloads travel: ``"auto"``, ``"all_gather"``, ``"hierarchical"`` (full precision inside a node),
            or ``"parameter_server"``.
        mode: ``"overlap"`` with the backward pass, or ``"after_backward"``.
        hardware: a profile's name, its file, or the profile itself: what the device, the codecs and the models cost.
        latency: seconds of one message between nodes; None: the profile's.
        accumulate: micro-batches in a step; only the last one is exchanged.
        compute_speed: how many times as fast as the profile's device the model computes.
        encode_speed: how many times as fast as the profile's device codecs encode and decode.
        ratio: how many times smaller than the codec's payloads yours are.
        backward: seconds of the backward pass; None: the profile's. The forward pass then takes half of it.
        sums: how all-reduces travel: ``"ring"``, ``"tree"``, ``"hierarchical"``, ``"parameter_server"``, or ``"auto"``,
            the fastest of the first three, as NCCL chooses; None: as the profile says.
        switch: the rate of the switch between all nodes, if that is a limit.

    Returns:
        The time of a step and its parts, what a worker sends, and every input with its source.

    Example:
        >>> import gradwire
        >>> place = {"model": "resnet50", "batch": 64, "gpus": 16, "bandwidth": "10gbit"}
        >>> fp32, fp16 = gradwire.predict(**place), gradwire.predict(codec="fp16", **place)
        >>> fp16.step_seconds < fp32.step_seconds
        True
        >>> round(fp32.sent_bytes / fp16.sent_bytes, 2)
        2.0
    """
    asked = locals()
    return perf.predict(**asked, workload=_own(**asked))


def advise(
    *,
    model: str,
    batch: int,
    gpus: int,
    bandwidth: str | float,
    gpus_per_node: int = 1,
    hardware: str | Profile = "h200",
    codecs: str | Sequence[str] | None = None,
    mode: str | None = None,
    strategy: str | None = None,
    task: str | None = None,
    max_loss: float = MAX_LOSS,
    any_codec: bool = False,
    accuracy: Mapping[str, Any] | None = None,
    latency: float | None = None,
    accumulate: int = 1,
    compute_speed: float = 1.0,
    encode_speed: float = 1.0,
    ratio: float = 1.0,
    backward: float | None = None,
    sums: str | None = None,
    switch: str | float | None = None,
) -> Advice:
    """Say which codec, if any, is worth it: safe ones ranked by the time of a step, and what would change the answer.

    Safe is what cost little quality in all our trainings with it, one of them on a task like the model's.

    Args:
        model: as in `predict`, like all that is not listed with its own meaning here.
        batch: samples of one GPU in one step.
        gpus: the number of GPUs in all.
        bandwidth: of a node's network card.
        gpus_per_node: GPUs in one node.
        hardware: a profile.
        codecs: the specs to rank; None: the whole catalogue.
        mode: rank this mode only; None: each codec in its fastest one.
        strategy: rank this strategy only; None: each codec with its fastest one.
        task: ``"images"``, ``"language"``, ``"recommendation"`` or ``"segmentation"``; None: what the model is for, and
            any for a model of your own.
        max_loss: points that a codec may have lost in a training of ours; of a perplexity, twice as many percent.
        any_codec: rank all codecs by time alone.
        accuracy: errors that predictions were found to have; None: those shipped.
        latency: seconds of one message between nodes.
        accumulate: micro-batches in a step.
        compute_speed: how many times as fast the model computes.
        encode_speed: how many times as fast codecs encode and decode.
        ratio: how many times smaller payloads are.
        backward: seconds of the backward pass.
        sums: how all-reduces travel.
        switch: the rate of the switch between all nodes.

    Returns:
        The verdict in a sentence and the line of code for it, the ranking, where the verdict turns over, and how sure
        it is.

    Example:
        >>> import gradwire
        >>> place = {"model": "resnet50", "batch": 64, "gpus": 16}
        >>> slow = gradwire.advise(**place, bandwidth="1gbit", codecs=["topk", "eightbit"])
        >>> slow.verdict.kind
        'worth it'
        >>> print(slow.verdict.line)  # doctest: +ELLIPSIS
        gradwire.attach(model, "eightbit", mode="...", strategy="...")
        >>> [(one.codec, one.standing) for one in slow.apart]
        [('topk', 'lossy')]
        >>> gradwire.advise(**place, bandwidth="400gbit", codecs="eightbit").verdict.kind
        'not worth it'
    """
    return advisor.advise(**_without_defaults(locals(), advisor.advise), predict=predict)


def whatif(
    *,
    sweep: Mapping[str, str | Sequence[str | float]],
    codecs: Sequence[str] = (),
    model: str | None = None,
    batch: int | None = None,
    gpus: int | None = None,
    bandwidth: str | float | None = None,
    gpus_per_node: int | None = None,
    strategy: str | None = None,
    mode: str | None = None,
    hardware: str | Profile | None = None,
    latency: float | None = None,
    accumulate: int | None = None,
    compute_speed: float | None = None,
    encode_speed: float | None = None,
    ratio: float | None = None,
    backward: float | None = None,
    sums: str | None = None,
    switch: str | float | None = None,
) -> Sweep:
    """Predict step times of codecs, and of FP32 and FP16 DDP, while one or two quantities are swept.

    Leave out the quantity that is swept, and whatever shall be as `predict` has it without being told: None stands for
    both. The model, and what of batch, GPUs and bandwidth is not swept, must be given.

    Args:
        sweep: by quantity (bandwidth, latency, gpus, gpus_per_node, batch, compute_speed, encode_speed or ratio) a
            range such as ``"1gbit:30gbit"``, with a number of points ``"1gbit:30gbit:20"``, or a list of values.
        codecs: the specs to compare; ``"bf16"`` is DDP with such gradients.
        model: as in `predict`, like all that follows.
        batch: samples of one GPU in one step.
        gpus: the number of GPUs in all.
        bandwidth: of a node's network card.
        gpus_per_node: GPUs in one node.
        strategy: how payloads travel.
        mode: ``"overlap"`` or ``"after_backward"``.
        hardware: a profile.
        latency: seconds of one message between nodes.
        accumulate: micro-batches in a step.
        compute_speed: how many times as fast the model computes.
        encode_speed: how many times as fast codecs encode and decode.
        ratio: how many times smaller payloads are.
        backward: seconds of the backward pass.
        sums: how all-reduces travel.
        switch: the rate of the switch between all nodes.

    Returns:
        A curve for each codec, and where it meets those of DDP.

    Example:
        >>> import gradwire
        >>> found = gradwire.whatif(
        ...     sweep={"bandwidth": "1gbit:1000gbit"}, codecs=["qsgd"], model="resnet50", batch=64, gpus=16
        ... )
        >>> [curve.label for curve in found.curves]
        ['FP32 DDP', 'FP16 DDP', 'qsgd']
        >>> print(found.sentences()[0])  # doctest: +ELLIPSIS
        qsgd is faster than FP16 DDP below ... Gbit/s, and than FP32 DDP below ... Gbit/s.
    """
    return sweeps.whatif(**locals(), predict=predict)


def _without_defaults(asked: Mapping[str, Any], inner: Callable[..., Any]) -> dict[str, Any]:
    """What `inner` hands on to `predict` is left out where it is what `predict` takes anyway: the answer repeats it."""
    own, usual = inspect.signature(inner).parameters, inspect.signature(predict).parameters
    return {name: value for name, value in asked.items() if name in own or value != usual[name].default}


def _own(
    *,
    model: str,
    gpus: int,
    codec: str,
    gpus_per_node: int,
    strategy: str,
    mode: str,
    **_: Any,
) -> Workload | None:
    """The workload of a model or codec that is not shipped; None for those that are."""
    wish = "auto" if strategy in (perf.HIERARCHICAL, perf.SERVER) else strategy
    if ":" not in model and (shipped().has(model, codec, wish) or model not in shipped().models()):
        return None  # shipped, or a name that nobody knows: the answer says so
    from gradwire.planner import own_workloads as workloads

    check_gpus(gpus, gpus_per_node)
    traces = workloads.own(model, codec, wish)
    spec = traces.codecs()[0]
    peers = gpus // gpus_per_node if strategy == perf.HIERARCHICAL else gpus
    return traces.workload(model, spec, wish, OVERLAP if spec in DDP else mode, max(2, peers))
