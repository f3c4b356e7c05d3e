"""The time of a training step of a sharded model (FSDP2) on a real, shaped network: codec x hosts x rate.

1. The model is a GPT, each of its layers and the rest sharded by `fully_shard`, as torch does by default: weights are
   gathered before the forward and again before the backward pass, in float32, whatever the codec.
2. With one rank a host all ranks hold a shard each, and the codec is in the reduce-scatter. With several (HSDP)
   the ranks of a host hold a shard each, and the codec is between the hosts, which hold replicas.
3. Beside the codecs run baselines: torch's own reduction in float32 and in bf16. Torch's reduce-scatter over gloo is an
   all-reduce and sends twice as much as it must, so a third baseline sends each shard once, in float32. All live in the
   same processes and take turns, as in `step`: so ratios are of one run.
4. Bytes: what the codec's exchange has sent is counted by us, what the host has sent in all by its interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gradwire.core.baselines import SHARDED_BF16, SHARDED_FP32, SHARDED_ONCE
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.integrations.ddp import attach
from gradwire.laboratory.bench import step
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import Group, Measured, Place, Sweep
from gradwire.models.gpt import Gpt, GptSize
from gradwire.sharded import check_codec

KIND = "sharded"
REPLICAS = (SHARDED_FP32, SHARDED_BF16)  # baselines
SHARDS = (*REPLICAS, SHARDED_ONCE)  # of a reduce-scatter
CODECS = ("bf16", "blockint(bits=8)", "blockint(bits=4)")
LAYERS, WIDTH = 4, 448  # 10.1 million parameters
HEAD, VOCABULARY, LENGTH = 32, 1024, 64  # width of a head; words there are, and in a text
SECONDS = ("forward", "backward", "optimizer")


def sweep(
    *,
    codecs: Sequence[str] = CODECS,
    layers: int = LAYERS,
    width: int = WIDTH,
    batch: int = 1,
    hosts: Sequence[int] = (4,),
    rates: Sequence[str] = ("1gbit",),
    per_host: int = 1,
    steps: int = step.STEPS,
    seconds: float | None = None,
) -> Sweep:
    """All combinations.

    Args:
        codecs: beside the baselines.
        layers: of the GPT.
        width: of a layer, a multiple of 32.
        batch: texts a step on each rank.
        hosts: how many.
        rates: of every link.
        per_host: ranks on each host; with more than one, the hosts hold replicas.
        steps: of each configuration.
        seconds: limit for each configuration.
    """
    check = Check("bench sharded")
    check.integer("layers", layers, 1)
    check.integer("batch", batch, 1)
    check.integer("steps", steps, step.LEAST)
    if isinstance(width, bool) or not isinstance(width, int) or width < HEAD or width % HEAD:
        check.fail("width", f"a multiple of {HEAD}", width)
    if seconds is not None:
        check.seconds("seconds", seconds)
    for codec in codecs:
        engine = Engine(codec, workers=min(hosts))  # refused now, not in the middle
        if per_host == 1:
            check_codec(engine, engine.codec)
    model = _build(layers, width)
    parameters = sum(p.numel() for p in model.parameters())
    common = {"layers": layers, "width": width, "parameters": parameters, "batch": batch, "steps": steps}
    baselines = SHARDS if per_host == 1 else REPLICAS
    plain, ours = ([{"configuration": n, **common, "seconds": seconds} for n in names] for names in (baselines, codecs))
    title = f"GPT of {parameters / 1e6:.3g} million parameters, batch {batch}"
    options = {"layers": layers, "width": width, "batch": batch, "gpus-per-host": per_host, "steps": steps}
    words = [f'--codec "{c}"' for c in codecs] if tuple(codecs) != CODECS else []
    words += [f"--hosts {h}" for h in hosts] + [f"--rate {r}" for r in rates]
    words += [f"--{name} {value}" for name, value in options.items()]
    words += [] if seconds is None else [f"--seconds {seconds:g}"]
    return Sweep(
        kind=KIND,
        command=" ".join(["gradwire bench sharded", *words]),
        unit="seconds a step, slowest rank",
        hosts=tuple(hosts),
        rates=tuple(rates),
        per_host=per_host,
        groups=(Group(title, tuple(ours), tuple(plain)),),
        measure=_measure,
    )


def _measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
    arguments = place.hosts, place.per_host, tuple(settings)
    ranks = launch(train_all, place.workers, arguments, step.TIMEOUT, hosts=place.namespaces)
    return [_merge(setting, shares) for setting, *shares in zip(settings, *ranks, strict=True)]


def _merge(setting: Mapping[str, Any], shares: Sequence[dict[str, Any]]) -> Measured:
    """One record's content from what each rank saw."""

    def over(name: str) -> list[float]:
        return [s[name] for s in shares if s.get(name) is not None]

    means = {name: over(name) for name in (*SECONDS, *step.PARTS)}
    outcome = {
        "parts_seconds": {name: sum(m) / len(m) if m else None for name, m in means.items()},
        "sent_bytes": max(over("sent_bytes"), default=None),
        "interface_bytes": max(over("interface_bytes")),
        "dropped": shares[0]["dropped"],
    }
    return Measured(setting, tuple(max(t) for t in zip(*(s["samples"] for s in shares), strict=True)), outcome)


# -------------------------------------------------------------------- what each rank does


def train_all(rank: Rank, hosts: int, per_host: int, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make all configurations' steps in turns; returns this rank's share of each."""
    if per_host == 1:
        mesh = init_device_mesh("cpu", (hosts,), mesh_dim_names=("shard",))
    else:
        mesh = init_device_mesh("cpu", (hosts, per_host), mesh_dim_names=("replicate", "shard"))
    return step.turns([_run(setting, mesh) for setting in settings])


def _run(setting: Mapping[str, Any], mesh: DeviceMesh) -> step.Run:
    label = setting["configuration"]
    model = _build(setting["layers"], setting["width"])
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) if label == SHARDED_BF16 else MixedPrecisionPolicy()
    own = label in SHARDS  # torch reduces over all of the mesh by itself
    for part in (*model.layers, model):
        wrapped = fully_shard(part, mesh=mesh if own else mesh["shard"], mp_policy=policy)
        if label == SHARDED_ONCE:
            wrapped.set_custom_reduce_scatter(_Once())
    replicas = mesh["replicate"] if mesh.ndim > 1 else None
    handle = None if own else attach(cast(FSDPModule, model), label, replicas=replicas)
    return step.Run(setting, step.training(model, model, _words(setting["batch"])), handle)


class _Once:
    """What torch calls in place of its reduce-scatter: each rank gets its shard of all others, and sums."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        torch.sum(received.view(-1, output_tensor.numel()), 0, out=output_tensor)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(dist.get_world_size(group))


def _build(layers: int, width: int) -> Gpt:
    torch.manual_seed(0)
    return Gpt(GptSize(layers, width, width // HEAD, VOCABULARY, LENGTH, dropout=0.0))


def _words(batch: int) -> tuple[Tensor, ...]:
    """Another text on each rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    return (torch.randint(VOCABULARY, (batch, LENGTH), generator=generator),)
