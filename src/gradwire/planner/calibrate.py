"""A profile from records: what was measured at one place says about models, codecs and the network.

Records of steps (``gradwire bench step``) and of single gradients (``gradwire bench collective``) at one place, that is
one number of hosts and one rate, hold the seconds of forward, backward and optimizer, and of encode, exchange and
decode of each codec; the workload says how many elements, messages and bytes these were for. Each law is a sum of what
it is made of, fitted by least squares of relative errors with no negative term:

- encode, decode: a fixed part for each unit, and a part for each element; from steps, where caches are as cold as
  they will be, or from single gradients if there are no steps;
- exchange: what starts one, what a message costs, and seconds a byte for each kind of exchange;
- a model: forward and optimizer as in plain DDP, backward as without exchange;
- handling: what steps take beyond all that, by mode, for a step and for an element.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradwire.core.baselines import CODEC_OF, DDP, FP16, FP32, NOTHING, PLAIN
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.core.units import BITS_PER_BYTE, format_rate
from gradwire.planner.cluster import KINDS, Cluster, Link
from gradwire.planner.cost import cost
from gradwire.planner.model import Prediction, predict
from gradwire.planner.profile import CodecCost, Device, Law, Network, Profile, Times, Whole, latest
from gradwire.planner.timeline import Overlap
from gradwire.planner.workload import Workload, shipped

LAUNCH_SECONDS = 1e-5  # the unit in which fixed parts are written
PASS_BYTES_PER_SECOND = 1e10  # and the speed by which passes are counted: about what one core copies

FITTED = STEP, COLLECTIVE = "step", "collective"  # kinds of records
DDP_WEIGHT = 5.0  # of plain DDP's exchanges in the network's law: nearly all of it is bytes, so it tells most of them

Find = Callable[[Mapping[str, Any]], Workload]  # of a record's `what`


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
        value = self.record.outcome["parts_seconds"].get(name)
        return None if value is None else float(value)

    @property
    def is_step(self) -> bool:
        return self.record.kind == STEP


def fit(
    records: Sequence[Record],
    find: Find,
    *,
    name: str,
    description: str,
    place: Place | None = None,
    held_out: Sequence[str] = (),
) -> Profile:
    """The profile that records of one place give; `place` says which if there are several.

    Of models that are `held_out` only steps without exchange and of FP32 DDP are looked at, for their times.
    """
    steps = [r for r in records if r.kind in (STEP, COLLECTIVE) and r.what["bits_per_second"]]
    places = sorted({Place.of(r.what) for r in steps}, key=lambda p: (p.hosts, p.bits_per_second))
    if place is None and len(places) != 1:
        listed = "; ".join(map(str, places)) or "none"
        raise ConfigError(f"calibrate: records of one place are wanted, got: {listed}; choose one with --place")
    where = place or places[0]
    here = [r for r in steps if Place.of(r.what) == where]
    if not here:
        raise ConfigError(f"calibrate: there is no record of {where}; measure there: gradwire bench step")
    seen = [_Seen(r, find(r.what)) for r in here if modelled(r) and r.what.get("model") not in held_out]
    models = _models([r for r in here if r.kind == STEP])
    first = Profile(
        name=name,
        description=description,
        device=Device(
            memory_bytes=float(here[0].environment["memory_bytes"]) / where.workers,
            launch_seconds=LAUNCH_SECONDS,
            pass_bytes_per_second=PASS_BYTES_PER_SECOND,
            source="measured: the machine's memory, shared by all ranks; launch and pass are units of count only",
        ),
        network=_network(seen, where, models),
        inside=Link(latency_seconds=0.0, bits_per_second=where.bits_per_second),
        inside_source="assumed: ranks of one host are as far from each other as hosts are",
        overlap=Overlap(1.0, 0.0),
        overlap_source="assumed: backward and exchange have a core each and do not disturb each other",
        models=models,
        codecs=_codecs(seen, where),
        about=_about(here, where),
    )
    return _with_rest(first, seen, where)


def _with_rest(profile: Profile, seen: Sequence[_Seen], place: Place) -> Profile:
    """With what the laws so far leave unexplained of a step: of DDP's FP16 hook, and of codecs."""
    steps = [s for s in seen if s.is_step]
    half = [s for s in steps if s.workload.codec == FP16]
    ours = [s for s in steps if s.part("encode") is not None]
    codecs = dict(profile.codecs)
    if half:
        fixed, each = _unexplained(replace(profile, codecs=codecs | {FP16: codecs[FP32]}), half)
        source = f"measured: what torch's hook adds to the wait of FP32 DDP's law ({place})"
        codecs[FP16] = CodecCost(encode=_as_law(fixed, each), decode=Law(), source=source)
    handling = {
        mode: _as_law(*_unexplained(profile, group)) for mode, group in grouped(ours, lambda s: s.workload.mode)
    }
    return replace(profile, codecs=codecs, device=replace(profile.device, handling=handling))


def _unexplained(profile: Profile, seen: Sequence[_Seen]) -> list[float]:
    """Seconds a step and an element by which measured steps are longer than predicted ones."""
    rows, values, weights = [], [], []
    for s in seen:
        predicted = predict_record(s.record, s.workload, profile).step_seconds
        rows.append([1.0, float(s.workload.elements)])
        values.append(max(0.0, s.record.quantiles.p50 - predicted))
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
        bandwidth=what["bits_per_second"] * _available(record) / profile.about.get("available", 1.0),
        codec=workload.codec,
        strategy=workload.strategy,
        mode=workload.mode,
        hardware=profile,
        workload=workload,
    )


def modelled(record: Record) -> bool:
    """Of a codec that compresses, or DDP itself.

    Torch's own PowerSGD, and gradwire carrying what DDP sends by itself, are measured beside, and not modelled.
    """
    if record.kind == COLLECTIVE:
        return True
    configuration = record.what["configuration"]
    return configuration not in DDP if "mode" in record.what else configuration in CODEC_OF


def _available(record: Record) -> float:
    """The share of the nominal rate that was free when all hosts sent at once, probed before the run; 1 if unknown."""
    probed = record.outcome.get("network", {}).get("payload_bits_per_second_together")
    return statistics.median(probed) / record.what["bits_per_second"] if probed else 1.0


def _about(records: Sequence[Record], place: Place) -> dict[str, Any]:
    first = records[0]
    return {
        "place": str(place),
        "records": len(records),
        "available": _available(first),
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
    for (model, batch), group in grouped(records, lambda r: (r.what["model"], r.what["batch"])):
        by_label = {r.what["configuration"]: r.outcome["parts_seconds"] for r in group}
        if NOTHING not in by_label:
            continue
        plain = by_label.get(PLAIN, by_label[NOTHING])
        alone = next(r for r in group if r.what["configuration"] == NOTHING)
        late = alone.quantiles.p50 - sum(by_label[NOTHING][p] for p in ("forward", "backward", "optimizer"))
        times = Times(
            batch=batch,
            jitter_seconds=max(0.0, late) / latest(alone.what["hosts"] * alone.what["ranks_per_host"]),
            forward_seconds=plain["forward"],
            backward_seconds=by_label[NOTHING]["backward"],
            optimizer_seconds=plain["optimizer"],
            source="measured: steps without exchange, and of FP32 DDP",
        )
        found.setdefault(model, []).append(times)
    return {model: tuple(sorted(times, key=lambda t: t.batch)) for model, times in found.items()}


def grouped(records: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    """By a key, in its order."""
    return [(k, list(g)) for k, g in groupby(sorted(records, key=key), key=key)]


# -------------------------------------------------------------------- codecs


def _codecs(seen: Sequence[_Seen], place: Place) -> dict[str, CodecCost]:
    costs = {
        FP32: CodecCost(
            encode=Law(), decode=Law(), source="assumed: DDP divides and copies inside its own measured times"
        )
    }
    ours = [s for s in seen if s.part("encode") is not None and s.workload.codec not in DDP]
    for codec, group in grouped(ours, lambda s: s.workload.codec):
        steps = [s for s in group if s.is_step]
        costs[codec] = _law(steps or group, place, "training steps" if steps else "single gradients")
    return costs


def _law(group: Sequence[_Seen], place: Place, what: str) -> CodecCost:
    encode_rows, encode_seen, decode_rows, decode_seen = [], [], [], []
    for s in group:
        units = s.workload.units
        encode_rows.append([float(len(units)), float(sum(u.compressed for u in units))])
        encode_seen.append(s.part("encode") or 0.0)
    fixed, each = solve(encode_rows, encode_seen)
    for s in group:
        works = [shipped().work(u.strategy, place.workers) for u in s.workload.units]
        again = sum((e - 1) * (fixed + each * u.compressed) for (e, _), u in zip(works, s.workload.units, strict=True))
        decode_rows.append(
            [sum(d for _, d in works), sum(d * u.compressed for (_, d), u in zip(works, s.workload.units, strict=True))]
        )
        decode_seen.append(max(0.0, (s.part("decode") or 0.0) - again))
    fixed_decode, each_decode = solve(decode_rows, decode_seen)
    source = f"measured: in {len(group)} configurations of {what} ({place})"
    wholes = {
        model: Whole(
            encode_seconds=statistics.fmean(_as_one_unit(s, s.part("encode") or 0.0, fixed) for s in members),
            decode_seconds=statistics.fmean(
                _as_one_unit(s, _decoded_once(s, place.workers), fixed_decode) for s in members
            ),
            source=source,
        )
        for model, members in grouped([s for s in group if s.is_step], lambda s: s.workload.model)
    }
    return CodecCost(
        encode=_as_law(fixed, each), decode=_as_law(fixed_decode, each_decode), source=source, models=wholes
    )


def _as_one_unit(s: _Seen, seconds: float, fixed: float) -> float:
    """What it would have been had all of the gradient been one unit."""
    return max(0.0, seconds - (len(s.workload.units) - 1) * fixed)


def _decoded_once(s: _Seen, workers: int) -> float:
    """Seconds of decoding the model's gradients once, given what a strategy decodes and encodes again."""
    works = [(u.compressed, *shipped().work(u.strategy, workers)) for u in s.workload.units]
    elements = max(1, sum(c for c, _, _ in works))
    again = sum(c * (e - 1) for c, e, _ in works) / elements * (s.part("encode") or 0.0)
    times = sum(c * d for c, _, d in works) / elements
    return max(0.0, (s.part("decode") or 0.0) - again) / max(1.0, times)


def _as_law(fixed: float, each: float) -> Law:
    return Law(launches=fixed / LAUNCH_SECONDS, passes=each * PASS_BYTES_PER_SECOND / 4)


# -------------------------------------------------------------------- network


def _network(seen: Sequence[_Seen], place: Place, models: Mapping[str, Sequence[Times]]) -> Network:
    """What starts an exchange, what a message costs, and seconds a byte of each kind."""
    rows, values, weights = [], [], []
    for s in seen:
        spent = (_exchanged(s) or 0.0) - (_late(s, models, place) if s.is_step else 0.0)
        if spent > 0:
            rows.append(_exchange_row(s.workload, place.workers))
            values.append(spent)
            weights.append((DDP_WEIGHT if s.workload.codec == FP32 else 1.0) / spent)
    if not rows:
        raise ConfigError("calibrate: no record says what exchanges cost; measure at least one codec there")
    start, latency, *per_byte = solve(rows, values, weights)
    ideal = BITS_PER_BYTE / place.bits_per_second
    used = {kind: min(1.0, ideal / b) for kind, b in zip(KINDS, per_byte, strict=True) if b}
    return Network(
        start_seconds=start,
        latency_seconds=latency,
        efficiency=used.get("sum", 1.0),
        source=f"measured: exchanges of {len(rows)} configurations, {place}",
        bits_per_second=place.bits_per_second,
        kinds={kind: {"efficiency": share} for kind, share in used.items() if kind != "sum"},
    )


def _exchanged(s: _Seen) -> float | None:
    """Seconds of a step's exchanges; DDP tells only how long it waits, which is that where backward is short."""
    spent = s.part("communicate")
    if spent is not None:
        return spent
    wait, backward = s.part("wait") or 0.0, s.part("backward") or 0.0
    return wait if s.workload.codec == FP32 and wait > 5 * backward else None


def _late(s: _Seen, models: Mapping[str, Sequence[Times]], place: Place) -> float:
    """What of a step's exchange is waiting for the slowest rank to begin."""
    what = s.record.what
    return next((t.slowest(place.workers) for t in models.get(what["model"], ()) if t.batch == what["batch"]), 0.0)


def _exchange_row(workload: Workload, workers: int) -> list[float]:
    """Rounds, messages one after the other, and bytes of each kind."""
    rounds, messages, sent = 0.0, 0.0, dict.fromkeys(KINDS, 0.0)
    for unit in workload.units:
        for _, group in groupby(sorted(unit.exchanges, key=lambda e: e.round), key=lambda e: e.round):
            exchanges = list(group)
            rounds += 1
            messages += max(_messages(e.kind, workers) for e in exchanges)
            for e in exchanges:
                sent["sum" if e.kind == "max" else e.kind] += e.sent_bytes(workers)
    return [rounds, messages, *sent.values()]


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
