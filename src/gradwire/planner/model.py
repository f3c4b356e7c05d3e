"""The time of a training step, predicted: workload, cluster and profile become one timeline.

1. The workload (from the tracer) says what each unit of compression exchanges; DDP's buckets are units, too.
2. The profile says how long forward, backward and optimizer take, and what encoding and decoding cost: once for every
   gradient that is encoded or decoded, and how many these are the tracer has counted for each strategy.
3. Exchanges cost latency and bandwidth of the cluster's links (`cost`).
4. The timeline lets all of it overlap as far as it does: DDP's buckets side by side, a codec's units one after the
   other in one lane, or everything after the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from gradwire.core.baselines import DDP, PREDICTED_STRATEGIES
from gradwire.core.errors import ConfigError, UnknownName, suggestion
from gradwire.core.records import quantile
from gradwire.core.registry import Check
from gradwire.core.units import format_bytes, format_milliseconds, format_rate
from gradwire.planner.cluster import Cluster, Link, check_rate
from gradwire.planner.cost import AUTO, CHOSEN_FROM, SUMS, Cost, cost, together
from gradwire.planner.profile import CodecCost, Profile, Times
from gradwire.planner.timeline import COMPUTE, EXCHANGE, Job, Stage, simulate
from gradwire.planner.workload import AFTER, OVERLAP, Unit, Workload, shipped

MODES = (OVERLAP, AFTER)
HIERARCHICAL, SERVER = "hierarchical", "parameter_server"
ALL_GATHER = "all_gather"
FP32_BYTES = 4


@dataclass(frozen=True)
class Input:
    """Something that went into an answer, and where it is from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted step. Seconds; bytes of one worker."""

    model: str
    batch: int
    gpus: int
    gpus_per_node: int
    bits_per_second: float
    codec: str
    strategy: str
    mode: str
    hardware: str
    step_seconds: float  # forward, backward, what the exchange adds, optimizer; all micro-batches
    sync_seconds: float  # from the beginning of the (last) backward pass until the gradients are there
    parts: dict[str, float]  # encode, exchange and decode may run beside the backward pass
    sent_bytes: float
    memory_bytes: float  # beside the training's own
    fits: bool | None  # into the device's memory; None: the training's own share is not known
    estimated: bool  # sizes depend on the data, and were taken from noise
    inputs: tuple[Input, ...]


def predict(
    *,
    model: str,
    batch: int,
    gpus: int,
    bandwidth: str | float,
    codec: str = "none",
    gpus_per_node: int = 1,
    strategy: str = "auto",
    mode: str = OVERLAP,
    hardware: str | Profile = "h200",
    latency: float | None = None,
    accumulate: int = 1,
    compute_speed: float = 1.0,
    encode_speed: float = 1.0,
    ratio: float = 1.0,
    backward: float | None = None,
    sums: str | None = None,
    switch: str | float | None = None,
    workload: Workload | None = None,
) -> Prediction:
    """The step of one model with one codec on one cluster; `gradwire.predict` tells what the arguments are.

    Args:
        workload: instead of the shipped one, for codecs and models of your own (`gradwire.planner.questions` finds it).
    """
    profile = Profile.load(hardware)
    sums = profile.network.sums if sums is None else sums
    _check(mode, strategy, sums, accumulate, compute_speed, encode_speed, ratio, backward)
    if workload is None:
        shipped().check_model(model)
    cluster = profile.cluster(gpus, gpus_per_node, bandwidth, latency)
    if switch is not None:
        cluster = replace(cluster, switch_bits_per_second=check_rate(switch))
    times = profile.times(model, batch) if backward is None else _given(batch, backward)
    if workload is None:
        wish = "auto" if strategy in (HIERARCHICAL, SERVER) else strategy
        kept = OVERLAP if codec in DDP else mode
        peers = cluster.nodes if strategy == HIERARCHICAL else gpus
        workload = shipped().workload(model, codec, wish, kept, max(peers, 2))
    found = profile.cost(workload.codec)
    if found is None:
        raise ConfigError(
            f"profile {profile.name} does not know what {workload.codec} costs; measure it here with --measure, give "
            f"--encode-ms and --decode-ms, or calibrate: gradwire calibrate --codec {workload.codec!r}"
        )
    expense, source = found
    if source == expense.source and expense.models and workload.model not in expense.models:
        source = _by_law(expense, workload.codec, profile)
    units = _Units(workload, profile, cluster, strategy, expense, encode_speed, ratio, sums)
    jobs = [units.job(unit) for unit in workload.units] if gpus > 1 else []
    work = times.backward_seconds / compute_speed
    baseline = workload.codec in DDP
    late = times.slowest(gpus) / compute_speed
    handling = late + (0.0 if baseline or not jobs else units.handling())
    line = simulate(work, [j.job for j in jobs], profile.overlap, one_lane=not baseline)
    forward, optimizer = times.forward_seconds / compute_speed, times.optimizer_seconds / compute_speed
    extra = units.memory_bytes() if gpus > 1 else 0.0
    own = times.memory_bytes
    return Prediction(
        model=model,
        batch=batch,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        bits_per_second=cluster.network.bits_per_second,
        codec=workload.codec,
        strategy=strategy,
        mode=OVERLAP if baseline else mode,
        hardware=profile.name,
        step_seconds=accumulate * forward + (accumulate - 1) * work + line.end_seconds + handling + optimizer,
        sync_seconds=line.end_seconds + handling,
        parts={
            "forward": accumulate * forward,
            "backward": accumulate * work,
            "encode": sum(j.encode for j in jobs),
            "exchange": sum(j.exchange for j in jobs),
            "decode": sum(j.decode for j in jobs),
            "wait": line.end_seconds + handling - work,
            "optimizer": optimizer,
        },
        sent_bytes=units.sent_bytes() if gpus > 1 else 0.0,
        memory_bytes=extra,
        fits=None if own is None else own + extra <= profile.device.memory_bytes,
        estimated=workload.estimated,
        inputs=_inputs(profile, cluster, times, workload, source, latency),
    )


def _check(
    mode: str,
    strategy: str,
    sums: str,
    accumulate: int,
    compute_speed: float,
    encode_speed: float,
    ratio: float,
    backward: float | None,
) -> None:
    check = Check("gradwire")
    check.one_of("mode", mode, MODES)
    check_strategy(strategy)
    check.one_of("sums", sums, SUMS)
    check.integer("accumulate", accumulate, 1)
    for name, value in (("compute_speed", compute_speed), ("encode_speed", encode_speed), ("ratio", ratio)):
        check.number(name, value, 1e-6, 1e6, "a factor above 0, such as 2 for twice as fast or small")
    if backward is not None:
        check.number("backward", backward, 0, 1e6, "seconds, such as 0.12")


def check_strategy(strategy: str) -> None:
    """Refuse a way of payloads that nothing can be predicted of."""
    if strategy not in PREDICTED_STRATEGIES:
        raise UnknownName(f"no strategy named {strategy!r}; {suggestion(strategy, PREDICTED_STRATEGIES)}")


def _given(batch: int, backward: float) -> Times:
    Check("gradwire").integer("batch", batch, 1)
    return Times(
        batch=batch,
        forward_seconds=backward / 2,
        backward_seconds=backward,
        optimizer_seconds=0.0,
        source="assumed: backward as you gave it, forward half of it, optimizer left out",
    )


@dataclass(frozen=True)
class _Costed:
    """A unit's job, and its sums."""

    job: Job
    encode: float
    exchange: float
    decode: float


@dataclass(frozen=True)
class _Units:
    """What turns units into jobs."""

    workload: Workload
    profile: Profile
    cluster: Cluster
    strategy: str
    expense: CodecCost
    encode_speed: float
    ratio: float
    sums: str

    @property
    def peers(self) -> int:
        """Who compress together."""
        return self.cluster.nodes if self.strategy == HIERARCHICAL else self.cluster.gpus

    def job(self, unit: Unit) -> _Costed:
        """Encode, rounds of exchanges with what lies between them, decode."""
        encode, decode = self._compute(unit)
        rounds = self._rounds(unit)
        before, after = self._inside(unit)
        stages = [Stage(EXCHANGE, before), Stage(COMPUTE, encode)]
        between = decode / len(rounds) if rounds else decode
        for seconds in rounds:
            stages += [Stage(EXCHANGE, seconds), Stage(COMPUTE, between)]
        stages.append(Stage(EXCHANGE, after))
        return _Costed(Job(unit.ready, tuple(stages)), encode, before + sum(rounds) + after, decode)

    def _compute(self, unit: Unit) -> tuple[float, float]:
        """Seconds of encoding and of decoding; none where all GPUs are in one node, and nothing leaves it."""
        if self._among.gpus == 1:
            return 0.0, 0.0
        share = 1 / self.cluster.gpus_per_node if self.strategy == HIERARCHICAL else 1.0
        elements, n = unit.compressed * share, self.peers
        encode, decode = self._once(elements)
        encodes, decodes = shipped().work(unit.strategy, n)
        # the second encoding of scatter-reduce-gather comes after the first exchange
        return encode / self.encode_speed, (decodes * decode + (encodes - 1) * encode) / self.encode_speed

    def _once(self, elements: float) -> tuple[float, float]:
        """Of one gradient: by the law, or by the share of a whole model's figure; any share pays what is fixed."""
        whole, device = self.expense.models.get(self.workload.model), self.profile.device
        if whole is not None:
            part = elements / max(1, self._compressed)
            pairs = ((whole.encode_seconds, self.expense.encode), (whole.decode_seconds, self.expense.decode))
            fixed = [min(seconds, law.seconds(0, device)) if law else 0.0 for seconds, law in pairs]
            encode, decode = (f + (seconds - f) * part for f, (seconds, _) in zip(fixed, pairs, strict=True))
            return encode, decode
        if self.expense.encode is None or self.expense.decode is None:
            known = ", ".join(sorted(self.expense.models))
            raise ConfigError(
                f"profile {self.profile.name} knows what {self.workload.codec} costs for {known} only, "
                f"not for {self.workload.model}"
            )
        return self.expense.encode.seconds(elements, device), self.expense.decode.seconds(elements, device)

    def handling(self) -> float:
        """What a step costs beside its units."""
        device = self.profile.device
        law = device.handling.get(self.workload.mode)
        return 0.0 if law is None else law.seconds(self.workload.elements, device) / self.encode_speed

    def _rounds(self, unit: Unit) -> list[float]:
        """Seconds of each round of exchanges."""
        if self._among.gpus == 1:
            return []
        rounds: dict[int, list[Cost]] = {}
        for e in unit.exchanges:
            rounds.setdefault(e.round, []).append(self._cost(e.kind, e.num_bytes / self.ratio))
        return [together(rounds[number]) for number in sorted(rounds)]

    def _cost(self, kind: str, num_bytes: float) -> Cost:
        """Of an exchange, by the fastest of the ways that it may go."""
        return min((each.times(num_bytes) for each in self._a_byte(kind)), key=lambda found: found.seconds)

    def _a_byte(self, kind: str) -> list[Cost]:
        """Of an exchange of one byte, by each way: latency, and what each byte adds. Asked for once a kind."""
        if kind not in self._known:
            way = self._way(kind)
            ways = CHOSEN_FROM if way == AUTO else (way,)
            self._known[kind] = [cost(kind, 1.0, self._among, each) for each in ways]
        return self._known[kind]

    @cached_property
    def _known(self) -> dict[str, list[Cost]]:
        return {}

    def _way(self, kind: str) -> str | None:
        """How an exchange travels; None: as is usual for its kind."""
        if kind in ("sum", "max"):
            return SERVER if self.strategy == SERVER else self.sums
        return SERVER if self.strategy == SERVER and kind == "gather" else None

    @cached_property
    def _compressed(self) -> int:
        return sum(u.compressed for u in self.workload.units)

    @cached_property
    def _among(self) -> Cluster:
        """Who exchange. Between nodes all GPUs of one send shares at once: its card carries what one would alone."""
        if self.strategy != HIERARCHICAL:
            return self.cluster
        return replace(self.cluster, gpus=self.cluster.nodes, gpus_per_node=1)

    def _inside(self, unit: Unit) -> tuple[float, float]:
        """Before and after, under `hierarchical`: the gradient in full precision, summed and handed out in the node."""
        g, link = self.cluster.gpus_per_node, self.cluster.inside
        if self.strategy != HIERARCHICAL or g == 1:
            return 0.0, 0.0
        node = replace(self.cluster, gpus=g, gpus_per_node=1, network=link, kinds={}, switch_bits_per_second=None)
        before, after = (
            sum(cost(e.kind, e.num_bytes * unit.elements, node).seconds for e in found) for found in shipped().inside(g)
        )
        return before, after

    def sent_bytes(self) -> float:
        """By one worker, over the network."""
        total = sum(e.sent_bytes(self.peers) for u in self.workload.units for e in u.exchanges) / self.ratio
        return total / self.cluster.gpus_per_node if self.strategy == HIERARCHICAL else total

    def memory_bytes(self) -> float:
        """At the peak, beside the gradient: the memory that is kept, and the largest unit's rows and decoded values."""
        kept = FP32_BYTES * self.workload.elements if self.workload.keeps else 0.0
        return kept + max((self._unit_memory(u) for u in self.workload.units), default=0.0)

    def _unit_memory(self, unit: Unit) -> float:
        if self.workload.codec in DDP:
            return max((e.num_bytes for e in unit.exchanges), default=0.0)
        received = sum(self.peers * e.num_bytes if e.kind == "gather" else 2 * e.num_bytes for e in unit.exchanges)
        return received / self.ratio + FP32_BYTES * unit.compressed


def _by_law(expense: CodecCost, codec: str, profile: Profile) -> str:
    """The source of a cost that no measurement of the whole model gives: how far off the law is where there is one."""
    off = []
    for model, whole in expense.models.items():
        if expense.encode is None or expense.decode is None or not shipped().has(model, codec, "auto"):
            continue
        elements = sum(unit.compressed for unit in shipped().workload(model, codec, "auto", OVERLAP, 2).units)
        law = expense.encode.seconds(elements, profile.device) + expense.decode.seconds(elements, profile.device)
        off.append(abs(law / (whole.encode_seconds + whole.decode_seconds) - 1))
    told = "by a law of sizes"
    if off:
        told += f", {100 * quantile(off, 0.5):.0f} % off in the median where models were measured whole ({len(off)})"
    return f"estimated: {told}"


def _inputs(
    profile: Profile, cluster: Cluster, times: Times, workload: Workload, codec_source: str, latency: float | None
) -> tuple[Input, ...]:
    """All that went in."""
    link: Link = cluster.network
    sizes = "estimated: of noise, since sizes depend on the data" if workload.estimated else "traced: exact"
    found = [
        Input("backward", format_milliseconds(times.backward_seconds), times.source),
        Input("forward", format_milliseconds(times.forward_seconds), times.source),
        Input("encode and decode", workload.codec, codec_source),
        Input("bytes", f"{format_bytes(workload.sent_bytes)} a worker, {len(workload.units)} units", sizes),
        Input(
            "network",
            f"{format_rate(link.bits_per_second)} a node, {link.efficiency:.3g} of it usable",
            profile.network.source,
        ),
        Input(
            "latency",
            f"{link.latency_seconds * 1e6:.3g} us a message",
            profile.network.source if latency is None else "assumed: as you gave it",
        ),
        Input(
            "contention",
            f"backward {profile.overlap.network_slowdown:.3g} times slower while exchanging",
            profile.overlap_source,
        ),
    ]
    if cluster.gpus_per_node > 1:
        found.append(Input("inside a node", format_rate(cluster.inside.bits_per_second), profile.inside_source))
    return tuple(found)
