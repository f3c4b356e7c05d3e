"""Training steps side by side: which records may be compared, who is ahead, and how often.

Configurations that took turns in the same processes share their `time`; a ratio is formed within such a run and nowhere
else. A baseline is a record without a `mode`: DDP as it comes, torch's own PowerSGD hook, or no exchange at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gradwire.core.baselines import DDP, HALF, PLAIN, POWERSGD
from gradwire.core.intervals import beats
from gradwire.core.records import Record
from gradwire.core.units import format_rate
from gradwire.laboratory.report.load import machine


@dataclass(frozen=True)
class SetUp:
    """What is the same for all configurations of a run."""

    machine: str
    model: str
    batch: int
    hosts: int
    ranks_per_host: int
    bits_per_second: float | None  # None: loopback, which has no rate

    @property
    def rate(self) -> str:
        """For people."""
        return "loopback" if self.bits_per_second is None else format_rate(self.bits_per_second)

    @property
    def place(self) -> str:
        """Hosts, for people."""
        return f"{self.hosts} hosts" + (f" x {self.ranks_per_host} ranks" if self.ranks_per_host > 1 else "")

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch} a rank, {self.place}, {self.rate}"


@dataclass(frozen=True)
class Run:
    """All configurations measured in the same processes."""

    set_up: SetUp
    time: str
    records: tuple[Record, ...]

    @property
    def ours(self) -> list[Record]:
        """Those with a codec that compresses more than DDP does by itself."""
        return [r for r in self.records if not is_baseline(r) and r.what["configuration"] not in DDP]

    def find(self, label: str) -> Record | None:
        """A baseline."""
        return next((r for r in self.records if is_baseline(r) and r.what["configuration"] == label), None)

    def against(self, record: Record, baseline: str = HALF) -> float | None:
        """How many times as fast as a baseline of this run; None if that was not measured."""
        other = self.find(baseline)
        return other.quantiles.p50 / record.quantiles.p50 if other else None

    def against_ddp(self, record: Record) -> float | None:
        """How many times as fast as the faster of FP32 and FP16 DDP."""
        ratios = [r for r in (self.against(record, PLAIN), self.against(record, HALF)) if r is not None]
        return min(ratios) if ratios else None

    def won(self, record: Record, baseline: str = HALF) -> bool:
        """Whether it beats a baseline of this run, by more than noise."""
        other = self.find(baseline)
        return other is not None and beats(record.samples, other.samples)

    def pays(self, record: Record) -> bool:
        """Whether it beats whatever was measured of FP32 and FP16 DDP."""
        there = [baseline for baseline in (PLAIN, HALF) if self.find(baseline) is not None]
        return bool(there) and all(self.won(record, baseline) for baseline in there)

    @property
    def best(self) -> tuple[Record, float] | None:
        """The fastest codec, and how many times as fast as DDP."""
        fastest = min(self.ours, key=lambda r: r.quantiles.p50, default=None)
        ratio = self.against_ddp(fastest) if fastest else None
        return (fastest, ratio) if fastest and ratio is not None else None


def is_baseline(record: Record) -> bool:
    """Whether no codec of ours is at work."""
    return "mode" not in record.what


def label(record: Record) -> str:
    """A configuration's name: its codec, and strategy and mode where they are not the usual ones."""
    what = record.what
    unusual = [what[k] for k, usual in (("strategy", "auto"), ("mode", "overlap")) if what.get(k, usual) != usual]
    return ", ".join([what["configuration"], *unusual])


def runs(records: Iterable[Record]) -> list[Run]:
    """The records of kind step by run, in the order of machines, models, batches, hosts and rates."""
    found: dict[tuple[SetUp, str], list[Record]] = {}
    for r in records:
        what = r.what
        set_up = SetUp(
            machine(r), what["model"], what["batch"], what["hosts"], what["ranks_per_host"], what["bits_per_second"]
        )
        found.setdefault((set_up, r.time), []).append(r)
    models = list(dict.fromkeys(s.model for s, _ in found))
    made = [Run(set_up, time, tuple(rs)) for (set_up, time), rs in found.items()]
    return sorted(
        made, key=lambda run: (run.set_up.machine, models.index(run.set_up.model), *_order(run.set_up), run.time)
    )


def _order(set_up: SetUp) -> tuple[float, ...]:
    rate = float("inf") if set_up.bits_per_second is None else set_up.bits_per_second
    return (set_up.batch, set_up.hosts, set_up.ranks_per_host, rate)


def main_sweep(all_runs: Sequence[Run]) -> list[Run]:
    """What is counted: the usual strategy and mode, and of each model the batch size measured most.

    Runs that compare modes are left out, and of a configuration measured twice in a set-up the older record. Where
    nothing was measured in the usual way, everything counts.
    """
    usual = [
        replace(run, records=tuple(r for r in run.records if r.what.get("strategy", "auto") == "auto"))
        for run in all_runs
        if not any(r.what.get("mode") == "after_backward" for r in run.records)
    ]
    sizes = Counter[tuple[str, str, int]]()
    for run in usual:
        sizes[run.set_up.machine, run.set_up.model, run.set_up.batch] += len(run.records)
    most: dict[tuple[str, str], int] = {}
    for (where, model, batch), _ in sizes.most_common():
        most.setdefault((where, model), batch)
    chosen = [r for r in usual if r.set_up.batch == most[r.set_up.machine, r.set_up.model]]
    return _once([r for r in chosen if r.ours] or [r for r in all_runs if r.ours])


def _once(found: Sequence[Run]) -> list[Run]:
    """Without configurations that a later run of the same set-up measured again."""
    seen: set[tuple[SetUp, str]] = set()
    kept = []
    for run in reversed(found):  # runs of one set-up are in the order of time
        fresh = tuple(r for r in run.records if is_baseline(r) or (run.set_up, label(r)) not in seen)
        seen |= {(run.set_up, label(r)) for r in run.ours}
        kept.append(replace(run, records=fresh))
    return [run for run in reversed(kept) if run.ours]


@dataclass(frozen=True, kw_only=True)
class Wins:
    """How often a codec is at least 5 % faster, by more than noise. A setting is a codec in a set-up."""

    set_ups: int
    codecs: int
    settings: int
    over_plain: int  # settings
    over_half: int
    set_ups_over_half: int  # set-ups in which at least one codec is
    set_ups_over_both: int
    power: int  # set-ups in which torch's PowerSGD hook was measured
    power_over_half: int
    power_over_powersgd: int  # set-ups in which the hook is faster than our powersgd
    power_over_all: int  # … than every codec of ours


def count(found: Sequence[Run]) -> Wins:
    """Count the wins of these runs."""
    settings = [(run, r) for run in found for r in run.ours]
    hooks = [(run, hook) for run in found if (hook := run.find(POWERSGD)) is not None]
    return Wins(
        set_ups=len(found),
        codecs=len({label(r) for _, r in settings}),
        settings=len(settings),
        over_plain=sum(run.won(r, PLAIN) for run, r in settings),
        over_half=sum(run.won(r, HALF) for run, r in settings),
        set_ups_over_half=sum(any(run.won(r, HALF) for r in run.ours) for run in found),
        set_ups_over_both=sum(any(run.pays(r) for r in run.ours) for run in found),
        power=len(hooks),
        power_over_half=sum(run.won(hook, HALF) for run, hook in hooks),
        power_over_powersgd=sum(
            (run.against(r, POWERSGD) or 1) < 1
            for run, _ in hooks
            for r in run.ours
            if r.what["configuration"].startswith("powersgd")
        ),
        power_over_all=sum(all((run.against(r, POWERSGD) or 1) < 1 for r in run.ours) for run, _ in hooks),
    )
