"""The autopilot on a real, shaped network, beside everything that it may choose.

1. In the same processes live plain DDP without any hook, the model with each codec that is safe for it, and the model
   under the autopilot. All see the same inputs.
2. The autopilot trains alone until it has chosen. How many steps and seconds that took is in its record.
3. Then all take turns, some steps each, the autopilot with what it has chosen. A sample is the slowest rank's time from
   zero_grad to the end of optimizer.step. The least median of the others is the best choice that there was.
4. With a rate to change to, all links then get it. The autopilot trains alone until it has noticed and chosen again,
   or for a limited number of steps, and all take turns once more.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradwire.core.baselines import FP32, PLAIN
from gradwire.core.errors import ConfigError
from gradwire.core.intervals import ratio
from gradwire.core.records import Record, quantile
from gradwire.core.registry import Check
from gradwire.core.units import parse_rate
from gradwire.integrations.autopilot import AUTO, Autopilot
from gradwire.integrations.trial import WATCH
from gradwire.laboratory.bench import step
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import LOOPBACK, Group, Measured, Place, Sweep
from gradwire.planner import quality
from gradwire.planner.own_kind import guess

KIND = "autopilot"
STEPS, LEAST = 40, 12  # of each, once the autopilot has chosen
TURN = 4  # steps until the next has its turn
DROPPED = 1  # of each turn: what the others did to caches and queues
MOST_STEPS = 1000  # in which the autopilot should have chosen
SETTLING = 2.0  # seconds that a change of rate may take
TIMEOUT = 7200.0


def sweep(
    *,
    model_names: Sequence[str] = ("resnet20",),
    batches: Sequence[int] = (4,),
    hosts: Sequence[int] = (4,),
    rates: Sequence[str] = ("1gbit",),
    then: str | None = None,
    per_host: int = 1,
    steps: int = STEPS,
    seconds: float | None = None,
) -> Sweep:
    """All combinations. `then`: the rate that links change to; `seconds` limits each configuration's time."""
    check = Check("bench autopilot")
    check.integer("steps", steps, LEAST)
    if seconds is not None:
        check.seconds("seconds", seconds)
    for batch in batches:
        check.integer("batch", batch, 1)
    if then is not None and LOOPBACK in rates:
        raise ConfigError("bench autopilot: loopback has no rate that could change; leave out --then, or name a --rate")
    phases = [None] if then is None else [None, parse_rate(then)]
    groups = []
    for name in model_names:
        for batch in batches:
            common = {"model": name, "batch": batch, "steps": steps, "seconds": seconds}
            settings = tuple(
                {"configuration": c, **common, "changed_to": bits} for bits in phases for c in configurations(name)
            )
            groups.append(Group(f"{name}, batch {batch}", settings))
    lists: dict[str, Sequence[object]] = {
        "model": model_names,
        "batch": batches,
        "hosts": hosts,
        "rate": rates,
        "then": [] if then is None else [then],
        "gpus-per-host": [per_host],
        "steps": [steps],
        "seconds": [] if seconds is None else [f"{seconds:g}"],
    }
    return Sweep(
        kind=KIND,
        command=" ".join(["gradwire bench autopilot", *(f"--{n} {v}" for n, values in lists.items() for v in values)]),
        unit="seconds a step, slowest rank",
        hosts=tuple(hosts),
        rates=tuple(rates),
        per_host=per_host,
        groups=tuple(groups),
        measure=_measure,
    )


def configurations(model: str) -> tuple[str, ...]:
    """The autopilot, and what it may choose for a model."""
    return (AUTO, PLAIN, *quality.safe(guess(step.build(model))))


def _measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
    then = max((s["changed_to"] for s in settings if s["changed_to"] is not None), default=None)

    def change(rank: int, message: object) -> None:
        if place.network is not None and then is not None:
            for host in range(place.hosts):
                place.network.set_rate(host, then)

    names = tuple(dict.fromkeys(s["configuration"] for s in settings))
    arguments = (names, settings[0], [None] if then is None else [None, then])
    try:
        ranks = launch(fly, place.workers, arguments, TIMEOUT, hosts=place.namespaces, on_message=change)
    finally:
        if place.network is not None and then is not None:  # other groups come here
            for host in range(place.hosts):
                place.network.set_rate(host, place.rate)
    merged = {key: _merge([share[key] for share in ranks]) for key in ranks[0]}
    found = []
    for setting in settings:
        key = setting["changed_to"], setting["configuration"]
        samples, outcome = merged[key]
        if key[1] == AUTO:
            others = {name: merged[key[0], name][0] for name in names if name != AUTO}
            outcome = outcome | _judged(samples, outcome["choice"], others)
        found.append(Measured(setting, samples, outcome))
    return found


def _merge(shares: Sequence[dict[str, Any]]) -> tuple[tuple[float, ...], dict[str, Any]]:
    """Samples of the slowest rank, and what the first rank saw."""
    samples = tuple(max(each) for each in zip(*(s["samples"] for s in shares), strict=True))
    outcome = {name: value for name, value in shares[0].items() if name not in ("samples", "digest")}
    return samples, outcome | {"replicas_equal": len({s["digest"] for s in shares}) == 1}


def _judged(samples: Sequence[float], choice: str, others: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The autopilot's step beside those of all that it might have chosen; and its choice, run without it, too."""
    seconds = {name: quantile(each, 0.5) for name, each in others.items()}
    best, mine = min(seconds, key=lambda name: seconds[name]), quantile(samples, 0.5)
    chosen = PLAIN if choice == FP32 else choice
    made = min(len(samples), len(others[best]))
    paired = ratio(samples[:made], others[best][:made])
    return {
        "best": best,
        "over_best": mine / seconds[best],
        "over_best_interval": [paired.low, paired.high],
        "over_plain": mine / seconds[PLAIN],
        "choice_over_best": seconds[chosen] / seconds[best],
        "seconds_of_others": seconds,
    }


def verdicts(found: Sequence[Record]) -> list[str]:
    """A line for each record of the autopilot."""
    lines = []
    for one in (r for r in found if r.what["configuration"] == AUTO):
        o = one.outcome
        chosen = "plain DDP" if o["choice"] == FP32 else o["choice"]
        spent = f"{o['trial_steps']} steps ({o['wall_seconds']:.1f} s)"
        when = f"after {spent}" if o["chose"] else f"without another trial in {spent}"
        replicas = "equal" if o["replicas_equal"] else "DIFFER"
        low, high = o["over_best_interval"]
        lines.append(
            f"The autopilot has {chosen} {when}: {o['over_best']:.3f} ({low:.3f} to {high:.3f}) times the step of "
            f"{o['best']}, the best of all, {o['over_plain']:.3f} times that of plain DDP; replicas {replicas}."
        )
    return lines


# -------------------------------------------------------------------- what each rank does


def fly(
    rank: Rank, names: Sequence[str], setting: Mapping[str, Any], phases: Sequence[float | None]
) -> dict[tuple[float | None, str], dict[str, Any]]:
    """All phases on one rank: the share of each configuration, by the rate that was changed to and its name."""
    runs = {name: _Run(name, setting) for name in names}
    shares = {}
    for bits in phases:
        if bits is not None:
            dist.barrier()
            if rank.rank == 0:
                rank.report("change the rate")
            time.sleep(SETTLING)
            dist.barrier()
        found = runs[AUTO].until_chosen()
        _take_turns(list(runs.values()), setting)
        for name, run in runs.items():
            shares[bits, name] = run.share() | (found if name == AUTO else {})
    return shares


def _take_turns(runs: Sequence[_Run], setting: Mapping[str, Any]) -> None:
    for run in runs:
        run.samples = []
    open_runs = list(runs)
    while open_runs:
        for run in open_runs:
            run.turn()
        # decided by rank 0's clock, so that all ranks make as many steps
        flags = torch.tensor([run.wants_more(setting) for run in open_runs], dtype=torch.uint8)
        dist.broadcast(flags, src=0)
        open_runs = [run for run, more in zip(open_runs, flags.tolist(), strict=True) if more]


class _Run:
    """One configuration on one rank."""

    def __init__(self, name: str, setting: Mapping[str, Any]) -> None:
        self.module = module = step.build(setting["model"])
        torch.manual_seed(dist.get_rank())  # ranks that saw the same could not drift apart
        inputs = step.example(setting["model"], module, setting["batch"])
        self.inputs = tuple(x * (1 + dist.get_rank() / 8) if x.is_floating_point() else x for x in inputs)
        self.model, self.handle = step.prepare(module, {"configuration": name, "strategy": "auto", "mode": "overlap"})
        self.optimizer = torch.optim.SGD(module.parameters(), step.RATE)
        self.samples: list[float] = []

    def step(self) -> float:
        """One training step; its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        step.loss_of(self.model(*self.inputs)).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return time.perf_counter() - start

    def turn(self) -> None:
        """Some steps in a row."""
        dist.barrier()
        self.samples += [self.step() for _ in range(TURN)][DROPPED:]

    def wants_more(self, setting: Mapping[str, Any]) -> bool:
        limit, made = setting["seconds"], len(self.samples)
        late = limit is not None and made >= LEAST and sum(self.samples) >= limit
        return made < setting["steps"] and not late

    def until_chosen(self) -> dict[str, Any]:
        """Train until the autopilot has ended one more trial; what it found."""
        assert isinstance(self.handle, Autopilot)
        pilot = self.handle.pilot  # its statistics would take time, between steps that are timed
        before, taken, start = pilot.trials, 0, time.perf_counter()
        while taken < MOST_STEPS and not (pilot.phase == WATCH and pilot.trials > before):
            self.step()
            taken += 1
        return {
            "choice": pilot.choice,
            "chose": pilot.trials > before,
            "trial_steps": taken,
            "wall_seconds": time.perf_counter() - start,
            "trial_seconds": dict(pilot.medians),
            "task": self.handle.task,
        }

    def share(self) -> dict[str, Any]:
        """What this rank adds to the record; plain values only."""
        weights = torch.cat([p.detach().reshape(-1) for p in self.module.parameters()])
        return {"samples": self.samples, "digest": hashlib.blake2b(weights.numpy().tobytes()).hexdigest()}
