"""The time of a training step on a real, shaped network: model x codec x strategy x mode x hosts x rate.

1. All configurations of one model and batch live in the same processes, see the same inputs and take turns, so that
   whatever else the machine does meets all of them alike. Three baselines are always among them: DDP in FP32, DDP with
   torch's FP16 hook, and torch's own PowerSGD hook (in one bucket: with more it hangs on gloo).
2. A sample is the slowest rank's time from zero_grad to the end of optimizer.step. As in the papers, 60 steps are made
   and the first 10 dropped. With a limit in seconds slow configurations make fewer: a sixth is dropped, at least 3.
3. The split: `forward`, `backward` (alone: measured in the same run without any exchange), `wait` (what the exchange
   adds to the backward pass), `optimizer`. `encode`, `communicate` and `decode` are seconds of the thread that
   compresses, which runs beside the backward pass in mode "overlap": they do not add up to the step.
4. Bytes of a step: counted by us, and counted by the host's interface, where headers and acknowledgements come on top.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire import models
from gradwire.core.baselines import BASELINES, CODEC_OF, HALF, NOTHING, PLAIN, POWERSGD
from gradwire.core.records import quantile
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.integrations.ddp import Handle, attach
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import Group, Measured, Place, Sweep
from gradwire.laboratory.bench.tasks import shapes
from gradwire.laboratory.hosts.network import interface_bytes
from gradwire.planner.model import MODES
from gradwire.tracing import trace

KIND = "step"
CODECS = (
    "blockint(bits=8)",
    "blockint(bits=4)",
    "efsignsgd",
    "signsgd",
    "qsgd",
    "terngrad",
    "natural",
    "topk(ratio=0.01)",
    "topkc",
    "randomk(ratio=0.01)",
    "dgc(ratio=0.01)",
    "powersgd(rank=4)",
)
OWN = "shapes"  # the demo's net, beside the catalogue
PARTS = ("encode", "communicate", "decode")  # what a handle tells the seconds of

STEPS, DROPPED = 60, 10
TURN = 4  # steps until the next configuration has its turn
LEAST, LEAST_DROPPED = 8, 3  # under a limit in seconds
RANK_OF_POWERSGD = 4
START_OF_POWERSGD = 2  # the hook's first steps send everything
ONE_BUCKET = 1 << 16  # MB
RATE = 1e-3  # learning rate: the arithmetic is timed, not the learning
TIMEOUT = 1800.0


def sweep(
    *,
    codecs: Sequence[str] = CODECS,
    strategies: Sequence[str] = ("auto",),
    modes: Sequence[str] = ("overlap",),
    model_names: Sequence[str] = ("resnet20",),
    batches: Sequence[int] = (4,),
    hosts: Sequence[int] = (4,),
    rates: Sequence[str] = ("1gbit",),
    per_host: int = 1,
    steps: int = STEPS,
    seconds: float | None = None,
    checksum: bool = False,
) -> Sweep:
    """All combinations. `batches` are examples on each rank; `seconds` limits each configuration's time.

    With `checksum` every codec takes its turn with checksums, too.
    """
    check = Check("bench step")
    check.integer("steps", steps, LEAST)
    if seconds is not None:
        check.seconds("seconds", seconds)
    for batch in batches:
        check.integer("batch", batch, 1)
    for mode in modes:
        check.one_of("mode", mode, MODES)
    for name in model_names:
        check_model(name)
    for codec in codecs:
        for strategy in strategies:
            Engine(codec, strategy=strategy, workers=min(hosts) * per_host)  # refused now, not in the middle
    groups = []
    for name in model_names:
        for batch in batches:
            common = {"model": name, "batch": batch, "steps": steps, "seconds": seconds}
            plain = tuple({"configuration": b, **common} for b in BASELINES)
            ours = tuple(
                {"configuration": c, "strategy": s, "mode": m, **common, **more}
                for c in codecs
                for s in strategies
                for m in modes
                for more in ({}, {"checksum": True})[: 1 + checksum]
            )
            groups.append(Group(f"{name}, batch {batch}", ours, plain))
    return Sweep(
        kind=KIND,
        command=_command(
            codecs, strategies, modes, model_names, batches, hosts, rates, per_host, steps, seconds, checksum
        ),
        unit="seconds a step, slowest rank",
        hosts=tuple(hosts),
        rates=tuple(rates),
        per_host=per_host,
        groups=tuple(groups),
        measure=_measure,
    )


def _command(
    codecs: Sequence[str],
    strategies: Sequence[str],
    modes: Sequence[str],
    model_names: Sequence[str],
    batches: Sequence[int],
    hosts: Sequence[int],
    rates: Sequence[str],
    per_host: int,
    steps: int,
    seconds: float | None,
    checksum: bool,
) -> str:
    """The command line that makes the same sweep."""
    lists: dict[str, Sequence[object]] = {
        "codec": () if tuple(codecs) == CODECS else [f'"{c}"' for c in codecs],
        "strategy": strategies,
        "mode": modes,
        "model": model_names,
        "batch": batches,
        "hosts": hosts,
        "rate": rates,
        "gpus-per-host": [per_host],
        "steps": [steps],
        "seconds": [] if seconds is None else [f"{seconds:g}"],
    }
    words = [f"--{name} {v}" for name, values in lists.items() for v in values]
    return " ".join(["gradwire bench step", *words, *(["--checksum"] if checksum else [])])


def build(name: str, device: str = "cpu") -> nn.Module:
    """A model to train: of the catalogue, the demo's, or what ``module:factory`` returns."""
    torch.manual_seed(0)
    return shapes.model(0).to(device) if name == OWN else models.build(name, device=device)


def example(name: str, module: nn.Module, batch: int, device: str = "cpu") -> tuple[Tensor, ...]:
    """Inputs of one step."""
    if name == OWN:
        return (shapes.data(batch, 0)[0].to(device),)
    return models.example(name, module, batch, device)


def check_model(name: str) -> None:
    """Refuse a model of which no step can be made."""
    if name != OWN:
        models.example(name, models.build(name), 2, "meta")


def tensors_of(name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a model's gradients."""
    module = shapes.model(0) if name == OWN else models.build(name)
    return [(n, tuple(p.shape)) for n, p in module.named_parameters() if p.requires_grad]


def _measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
    ranks = launch(train_all, place.workers, (tuple(settings),), TIMEOUT, hosts=place.namespaces)
    return merged(settings, ranks, place.workers)


def merged(
    settings: Sequence[Mapping[str, Any]], ranks: Sequence[Sequence[dict[str, Any]]], workers: int
) -> list[Measured]:
    """What all ranks' shares of all settings say together."""
    alone = [s["backward"] for s in (share[0] for share in ranks)]  # the first setting is without exchange
    return [
        _merge(setting, shares, workers, sum(alone) / len(alone))
        for setting, *shares in zip(settings, *ranks, strict=True)
    ]


def _merge(setting: Mapping[str, Any], shares: Sequence[dict[str, Any]], workers: int, alone: float) -> Measured:
    """One record's content from what each rank saw."""

    def mean(name: str) -> float:
        return float(sum(s[name] for s in shares) / len(shares))

    counted = shares[0]["sent_bytes"] is not None
    parts: dict[str, float | None] = {
        "forward": mean("forward"),
        "backward": alone,
        "wait": max(0.0, mean("backward") - alone),
        "optimizer": mean("optimizer"),
    }
    parts |= {p: mean(p) if counted else None for p in PARTS}
    outcome = {
        "parts_seconds": parts,
        "sent_bytes": max(s["sent_bytes"] for s in shares) if counted else _known_bytes(setting, workers),
        "interface_bytes": max(s["interface_bytes"] for s in shares),
        "dropped": shares[0]["dropped"],
    }
    return Measured(setting, tuple(max(t) for t in zip(*(s["samples"] for s in shares), strict=True)), outcome)


def _known_bytes(setting: Mapping[str, Any], workers: int) -> float | None:
    """What the baselines send, by the same arithmetic as ours; torch's PowerSGD is left to the interface's count."""
    codec = CODEC_OF.get(setting["configuration"])
    if codec is None:
        return 0.0 if setting["configuration"] == NOTHING else None
    return float(trace(codec, tensors_of(setting["model"]), workers=workers, tensors="all").sent_bytes)


# -------------------------------------------------------------------- what each rank does


def train_all(rank: Rank | None, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make all configurations' steps in turns over the default group; returns this rank's share of each."""
    return turns([_run(setting) for setting in settings])


def _run(setting: Mapping[str, Any]) -> Run:
    module = build(setting["model"])
    inputs = example(setting["model"], module, setting["batch"])
    model, handle = prepare(module, setting, ONE_BUCKET)
    return Run(setting, training(model, module, inputs), handle)


def turns(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Make all steps of all configurations, some of each in turn; returns this rank's share of each."""
    open_runs = list(runs)
    while open_runs:
        for run in open_runs:
            for _ in range(min(TURN, run.steps - len(run.samples))):
                run.step()
        open_runs = [run for run, go_on in zip(open_runs, _agreed(open_runs), strict=True) if go_on]
    return [run.share() for run in runs]


def _agreed(runs: Sequence[Run]) -> list[bool]:
    """Who goes on: decided by rank 0's clock, so that all ranks make as many steps."""
    flags = torch.tensor([run.wants_more for run in runs], dtype=torch.uint8)
    dist.broadcast(flags, src=0)
    return [bool(f) for f in flags]


class Counted(Protocol):
    """What tells bytes and seconds since it was attached."""

    def stats(self) -> dict[str, Any]: ...


class Run:
    """One configuration on one rank.

    Args:
        setting: its ``steps``, and the ``seconds`` that they may take, or None.
        make: makes a step, and tells the seconds of its parts.
        handle: that compresses, if any does.
    """

    def __init__(
        self, setting: Mapping[str, Any], make: Callable[[], dict[str, float]], handle: Counted | None
    ) -> None:
        self.setting, self.steps = setting, int(setting["steps"])
        self.make, self.handle = make, handle
        self.samples: list[dict[str, float]] = []
        self.interface: list[int] = []
        self.counts: list[dict[str, float]] = []

    def step(self) -> None:
        dist.barrier()
        sent = interface_bytes()[0]
        self.samples.append(self.make())
        self.interface.append(interface_bytes()[0] - sent)
        if self.handle is not None:
            stats = self.handle.stats()
            self.counts.append({"sent_bytes": stats["sent_bytes"]} | {p: stats[f"{p}_seconds"] for p in PARTS})

    @property
    def wants_more(self) -> bool:
        limit, made = self.setting["seconds"], len(self.samples)
        spent = sum(sum(s.values()) for s in self.samples[LEAST_DROPPED:])  # the first ones compile and arrange
        late = limit is not None and made >= LEAST and spent >= limit
        return made < self.steps and not late

    def share(self) -> dict[str, Any]:
        """What this rank adds to the record; plain values only."""
        made = len(self.samples)
        dropped = DROPPED if made >= STEPS else max(LEAST_DROPPED, made * DROPPED // STEPS)
        kept = self.samples[dropped:]
        share: dict[str, Any] = {
            "samples": [sum(s.values()) for s in kept],
            **{part: quantile([s[part] for s in kept], 0.5) for part in kept[0]},
            "interface_bytes": quantile(self.interface[dropped:], 0.5),
            "dropped": dropped,
            "sent_bytes": None,
        }
        if self.counts:
            first, last, timed = self.counts[dropped - 1], self.counts[-1], made - dropped
            share |= {name: (last[name] - first[name]) / timed for name in ("sent_bytes", *PARTS)}
        return share


def training(
    model: Callable[..., Any], module: nn.Module, inputs: tuple[Tensor, ...]
) -> Callable[[], dict[str, float]]:
    """What makes a training step, and tells the seconds of its parts.

    Args:
        model: what computes the scores.
        module: whose parameters are trained.
        inputs: of a step.
    """
    optimizer = torch.optim.SGD(module.parameters(), RATE)

    def step() -> dict[str, float]:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(model(*inputs))
        forward = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        backward = time.perf_counter()
        optimizer.step()
        end = time.perf_counter()
        return {"forward": forward - start, "backward": backward - forward, "optimizer": end - backward}

    return step


def prepare(
    module: nn.Module, setting: Mapping[str, Any], powersgd_bucket_mb: int | None = None, **options: Any
) -> tuple[Callable[..., Any], Handle | None]:
    """What computes the scores, with the configuration's exchange behind its backward pass.

    Args:
        module: the model.
        setting: which configuration it is; for codecs, strategy and mode.
        powersgd_bucket_mb: the size of buckets for torch's PowerSGD hook; None: DDP's own.
        options: of DDP.
    """
    label: str = setting["configuration"]
    if label == NOTHING:
        return module, None
    if label == POWERSGD:
        model = DistributedDataParallel(module, bucket_cap_mb=powersgd_bucket_mb, init_sync=False, **options)
        state = PowerSGDState(None, matrix_approximation_rank=RANK_OF_POWERSGD, start_powerSGD_iter=START_OF_POWERSGD)
        model.register_comm_hook(state, powerSGD_hook)
        return model, None
    # equal by their seed: nothing to send beforehand
    model = DistributedDataParallel(module, init_sync=False, **options)
    if label == HALF:
        model.register_comm_hook(None, fp16_compress_hook)
    if label in (PLAIN, HALF):
        return model, None
    chosen = {"strategy": setting["strategy"], "mode": setting["mode"], "checksum": setting.get("checksum", False)}
    return model, attach(model, label, **chosen)


def loss_of(output: Any) -> Tensor:
    """Any scalar will do: gradients of every parameter are wanted, not a trained model."""
    scores = output[0] if isinstance(output, tuple) else output
    return scores.float().square().mean()  # type: ignore[no-any-return]
