"""A profile from records: what steps measured at one place say about models, codecs and the network.

Step records (``gradwire bench step``) of one place, that is one number of hosts and one rate, hold the seconds of
forward, backward and optimizer, and of encode, exchange and decode of each codec; the workload says how many
elements, messages and bytes these were for. Each law is a sum of what it is made of, fitted by least squares of
relative errors with no negative term:

- encode, decode: a fixed part for each unit, and a part for each element;
- exchange: a latency for each message, and seconds a byte, for each kind of exchange;
- a model: forward and optimizer as in plain DDP, backward as without exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.core.units import BITS_PER_BYTE, format_rate
from gradwire.perf.cluster import KINDS, Cluster, Link
from gradwire.perf.cost import cost
from gradwire.perf.model import Prediction, predict, work
from gradwire.perf.profile import CodecCost, Device, Law, Network, Profile, Times
from gradwire.perf.timeline import Overlap
from gradwire.perf.workload import OVERLAP, Workload

NOTHING, PLAIN, HALF = "no exchange", "fp32 DDP", "fp16 DDP"
BASELINE_CODECS = {PLAIN: "none", HALF: "fp16"}
LAUNCH_SECONDS = 1e-5  # the unit in which fixed parts are written
PASS_BYTES_PER_SECOND = 1e10  # and the speed by which passes are counted: about what one core copies

Find = Callable[[str, str, str, str, int], Workload]  # of model, codec, strategy, mode, workers


@dataclass(frozen=True)
class Place:
    """Where steps were measured."""

    hosts: int
    ranks_per_host: int
    bits_per_second: float

    @classmethod
    def of(cls, what: Mapping[str, Any]) -> Place:
        return cls(what["hosts"], what["ranks_per_host"], what["bits_per_second"])

    @property
    def workers(self) -> int:
        return self.hosts * self.ranks_per_host

    def __str__(self) -> str:
        return f"{self.hosts} hosts at {format_rate(self.bits_per_second)}"


@dataclass(frozen=True)
class _Seen:
    """One record, and what it was about."""

    record: Record
    workload: Workload

    def part(self, name: str) -> float | None:
        value = self.record.outcome["parts_seconds"][name]
        return None if value is None else float(value)


def fit(records: Sequence[Record], find: Find, *, name: str, description: str, place: Place | None = None) -> Profile:
    """The profile that step records of one place give; `place` says which if there are several."""
    steps = [r for r in records if r.kind == "step" and r.what["bits_per_second"]]
    places = sorted({Place.of(r.what) for r in steps}, key=lambda p: (p.hosts, p.bits_per_second))
    if place is None and len(places) != 1:
        listed = "; ".join(map(str, places)) or "none"
        raise ConfigError(f"calibrate: step records of one place are wanted, got: {listed}; choose one")
    where = place or places[0]
    here = [r for r in steps if Place.of(r.what) == where]
    if not here:
        raise ConfigError(f"calibrate: there is no step record of {where}; measure there: gradwire bench step")
    usual = [r for r in here if r.what["configuration"] != NOTHING and _ours(r)]
    seen = [_Seen(r, find(*_question(r), where.workers)) for r in usual]
    first = Profile(
        name=name,
        description=description,
        device=Device(
            memory_bytes=float(here[0].environment["memory_bytes"]) / where.workers,
            launch_seconds=LAUNCH_SECONDS,
            pass_bytes_per_second=PASS_BYTES_PER_SECOND,
            source="measured: the machine's memory, shared by all ranks; launch and pass are units of count only",
        ),
        network=_network(seen, where),
        inside=Link(latency_seconds=0.0, bits_per_second=where.bits_per_second),
        inside_source="assumed: ranks of one host are as far from each other as hosts are",
        overlap=Overlap(1.0, 0.0),
        overlap_source="assumed: backward and exchange have a core each and do not disturb each other",
        models=_models(here),
        codecs=_codecs(seen, where),
        about=_about(here, where),
    )
    return _with_rest(first, seen, where)


def _with_rest(profile: Profile, seen: Sequence[_Seen], place: Place) -> Profile:
    """With what the laws so far leave unexplained of the wait: of DDP's FP16 hook, and of a codec's step."""
    half = [s for s in seen if s.workload.codec == "fp16"]
    ours = [s for s in seen if s.part("encode") is not None]
    codecs = dict(profile.codecs)
    if half:
        fixed, each = _unexplained(replace(profile, codecs=codecs | {"fp16": codecs["none"]}), half, place)
        source = f"measured: what torch's hook adds to the wait of FP32 DDP's law ({place})"
        codecs["fp16"] = CodecCost(encode=_as_law(fixed, each), decode=Law(), source=source)
    handling = _as_law(*_unexplained(profile, ours, place)) if ours else Law()
    return replace(profile, codecs=codecs, device=replace(profile.device, handling=handling))


def _unexplained(profile: Profile, seen: Sequence[_Seen], place: Place) -> list[float]:
    """Seconds a step and an element by which measured waits are longer than predicted ones."""
    rows, values, weights = [], [], []
    for s in seen:
        predicted = predict_record(s.record, s.workload, profile).parts["wait"]
        rows.append([1.0, float(s.workload.elements)])
        values.append(max(0.0, (s.part("wait") or 0.0) - predicted))
        weights.append(1 / s.record.quantiles.p50)
    return solve(rows, values, weights)


def predict_record(record: Record, workload: Workload, profile: Profile) -> Prediction:
    """What the profile says of a measured setting."""
    what = record.what
    return predict(
        model=what["model"],
        batch=what["batch"],
        gpus=what["hosts"] * what["ranks_per_host"],
        gpus_per_node=what["ranks_per_host"],
        bandwidth=what["bits_per_second"],
        codec=workload.codec,
        strategy=workload.strategy,
        mode=workload.mode,
        hardware=profile,
        workload=workload,
    )


def _ours(record: Record) -> bool:
    """A codec of gradwire, or DDP itself; torch's own PowerSGD is measured beside, and not modelled."""
    return "mode" in record.what or record.what["configuration"] in BASELINE_CODECS


def _question(record: Record) -> tuple[str, str, str, str]:
    """Model, codec, strategy and mode of a record."""
    what = record.what
    codec = BASELINE_CODECS.get(what["configuration"], what["configuration"])
    return what["model"], codec, what.get("strategy", "auto"), what.get("mode", OVERLAP)


def _about(records: Sequence[Record], place: Place) -> dict[str, Any]:
    first = records[0]
    return {
        "place": str(place),
        "records": len(records),
        "cpu": first.environment["cpu"],
        "cores": first.environment["cores"],
        "torch": first.environment["torch"],
        "commit": first.commit,
        "time": first.time,
        "command": first.command,
    }


# -------------------------------------------------------------------- models


def _models(records: Sequence[Record]) -> dict[str, tuple[Times, ...]]:
    found: dict[str, list[Times]] = {}
    for (model, batch), group in _grouped(records, lambda r: (r.what["model"], r.what["batch"])):
        by_label = {r.what["configuration"]: r.outcome["parts_seconds"] for r in group}
        if NOTHING not in by_label:
            continue
        plain = by_label.get(PLAIN, by_label[NOTHING])
        times = Times(
            batch=batch,
            forward_seconds=plain["forward"],
            backward_seconds=by_label[NOTHING]["backward"],
            optimizer_seconds=plain["optimizer"],
            source="measured: steps without exchange, and of FP32 DDP",
        )
        found.setdefault(model, []).append(times)
    return {model: tuple(sorted(times, key=lambda t: t.batch)) for model, times in found.items()}


def _grouped(records: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    return [(k, list(g)) for k, g in groupby(sorted(records, key=key), key=key)]


# -------------------------------------------------------------------- codecs


def _codecs(seen: Sequence[_Seen], place: Place) -> dict[str, CodecCost]:
    costs = {
        BASELINE_CODECS[PLAIN]: CodecCost(
            encode=Law(), decode=Law(), source="assumed: DDP divides and copies inside its own measured times"
        )
    }
    ours = [s for s in seen if s.part("encode") is not None]
    for codec, group in _grouped(ours, lambda s: s.workload.codec):
        costs[codec] = _law(group, place)
    return costs


def _law(group: Sequence[_Seen], place: Place) -> CodecCost:
    encode_rows, encode_seen, decode_rows, decode_seen = [], [], [], []
    for s in group:
        units = s.workload.units
        encode_rows.append([float(len(units)), float(sum(u.compressed for u in units))])
        encode_seen.append(s.part("encode") or 0.0)
    fixed, each = solve(encode_rows, encode_seen)
    for s in group:
        works = [work(u, place.workers) for u in s.workload.units]
        again = sum((e - 1) * (fixed + each * u.compressed) for (e, _), u in zip(works, s.workload.units, strict=True))
        decode_rows.append(
            [sum(d for _, d in works), sum(d * u.compressed for (_, d), u in zip(works, s.workload.units, strict=True))]
        )
        decode_seen.append(max(0.0, (s.part("decode") or 0.0) - again))
    fixed_decode, each_decode = solve(decode_rows, decode_seen)
    return CodecCost(
        encode=_as_law(fixed, each),
        decode=_as_law(fixed_decode, each_decode),
        source=f"measured: in {len(group)} training steps ({place})",
    )


def _as_law(fixed: float, each: float) -> Law:
    return Law(launches=fixed / LAUNCH_SECONDS, passes=each * PASS_BYTES_PER_SECOND / 4)


# -------------------------------------------------------------------- network


def _network(seen: Sequence[_Seen], place: Place) -> Network:
    """What starts an exchange, what a message costs, and seconds a byte: of sums, and of rows that go to peers."""
    rows, values = [], []
    for s in seen:
        spent = _exchanged(s)
        if spent is not None:
            rows.append(_exchange_row(s.workload, place.workers))
            values.append(spent)
    if not rows:
        raise ConfigError("calibrate: no record says what exchanges cost; measure at least one codec there")
    start, latency, *per_byte = solve(rows, values)
    ideal = BITS_PER_BYTE / place.bits_per_second
    used = {kind: min(1.0, ideal / b) if b else 1.0 for kind, b in zip(("sum", "rows"), per_byte, strict=True)}
    return Network(
        start_seconds=start,
        latency_seconds=latency,
        efficiency=used["sum"],
        source=f"measured: {len(rows)} configurations' exchanges in training steps, {place}",
        bits_per_second=place.bits_per_second,
        kinds={kind: {"efficiency": used["rows"]} for kind in KINDS if kind != "sum"} if per_byte[1] else {},
    )


def _exchanged(s: _Seen) -> float | None:
    """Seconds of a step's exchanges; DDP tells only how long it waits, which is that where backward is short."""
    spent = s.part("communicate")
    if spent is not None:
        return spent
    wait, backward = s.part("wait") or 0.0, s.part("backward") or 0.0
    return wait if s.workload.codec == "none" and wait > 5 * backward else None


def _exchange_row(workload: Workload, workers: int) -> list[float]:
    """Rounds, messages one after the other, bytes of sums, bytes of rows."""
    rounds, messages, sums, others = 0.0, 0.0, 0.0, 0.0
    for unit in workload.units:
        for _, group in groupby(sorted(unit.exchanges, key=lambda e: e.round), key=lambda e: e.round):
            exchanges = list(group)
            rounds += 1
            messages += max(_messages(e.kind, workers) for e in exchanges)
            sums += sum(e.sent_bytes(workers) for e in exchanges if e.kind in ("sum", "max"))
            others += sum(e.sent_bytes(workers) for e in exchanges if e.kind not in ("sum", "max"))
    return [rounds, messages, sums, others]


def _messages(kind: str, workers: int) -> float:
    unit = Link(latency_seconds=1.0, bits_per_second=1.0)
    return cost(kind, 0.0, Cluster(gpus=workers, network=unit, inside=unit)).latency_seconds


# -------------------------------------------------------------------- least squares


def solve(
    rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float] = (), sweeps: int = 500
) -> list[float]:
    """Non-negative x that makes rows · x near the values: least squares, of relative errors unless there are weights.

    One term at a time, which ends where no single change helps.
    """
    weights = weights or [1 / max(v, 1e-6) for v in values]
    columns = len(rows[0])
    scaled = [[w * a for a in row] for w, row in zip(weights, rows, strict=True)]
    norms = [sum(row[j] ** 2 for row in scaled) for j in range(columns)]
    x, left = [0.0] * columns, [w * v for w, v in zip(weights, values, strict=True)]
    for _ in range(sweeps):
        for j in range(columns):
            if norms[j]:
                step = max(-x[j], sum(row[j] * r for row, r in zip(scaled, left, strict=True)) / norms[j])
                x[j] += step
                left = [r - step * row[j] for row, r in zip(scaled, left, strict=True)]
    return x
