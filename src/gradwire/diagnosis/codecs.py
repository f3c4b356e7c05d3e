"""What safe codecs would bring to the job that was seen: estimates by the planner, at the rate that was seen.

The network's rate is the one at which the planner's own timeline of plain DDP, with this job's backward pass and
gradients, leaves as much exchange exposed as there was. With a codec the timeline leaves another amount exposed, and
the step is estimated to be shorter by the difference. Everything else about the job stays as it was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gradwire.core.baselines import DDP, FP16, FP32, MAX_LOSS, WIN
from gradwire.diagnosis.causes import Account, tiny
from gradwire.diagnosis.watch import CPU, Watch
from gradwire.planner import model as perf
from gradwire.planner import quality
from gradwire.planner.advisor import FP16_HOOK, switch_on
from gradwire.planner.model import HIERARCHICAL, Prediction
from gradwire.planner.profile import CodecCost, Network, Profile, Times
from gradwire.planner.ranking import Contest, Ranked
from gradwire.planner.workload import OVERLAP, ModelShape, Traces, Workload

SLOWEST, FASTEST = 1e5, 1e13  # bit/s between which a rate is looked for
PRECISION = 1e-3
SEEN = 0.02  # of a step that must be exposed, to tell the rate by it
GLOO_LATENCY = 1e-4  # seconds of a message, with what gloo does about it on a CPU
BATCH = 1  # a job's times are of its own batch, whatever that is


@dataclass(frozen=True)
class Gain:
    """A codec, or DDP with half the bits, on this job."""

    codec: str
    step_seconds: float
    speedup: float  # over the job as it was seen
    sent_bytes: float  # by one rank
    evidence: str
    line: str | None  # what switches it on


@dataclass(frozen=True)
class Gains:
    """The fastest first. Where nothing could be estimated, `remark` says why."""

    bits_per_second: float | None
    codecs: tuple[Gain, ...]
    remark: str


@dataclass(frozen=True)
class Job:
    """What the planner needs to know of a job."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ranks: int
    per_node: int
    sends: str  # what stands for what DDP sends: "none", or "fp16" where gradients have 16 bits
    device: str
    backend: str
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    network_seconds: float
    step_seconds: float

    @classmethod
    def of(cls, watch: Watch, found: Account) -> Job:
        """The job of one rank's watch and everybody's account."""
        local = watch.local_ranks
        return cls(
            name=watch.model,
            shapes=watch.shapes,
            ranks=watch.ranks,
            per_node=local if local < watch.ranks and watch.ranks % local == 0 else 1,
            sends=FP32 if watch.gradient_bits >= 32 and not watch.settings.hook else FP16,
            device=watch.settings.device,
            backend=watch.settings.backend,
            forward_seconds=found.forward_seconds,
            backward_seconds=found.backward_seconds,
            optimizer_seconds=found.parts["optimizer"],
            network_seconds=found.network_seconds,
            step_seconds=found.step_seconds,
        )


HALF_HOOKS = ("fp16_compress_hook", "bf16_compress_hook")  # torch's own: what they send is known


def gains(
    watch: Watch,
    found: Account,
    costs: Mapping[str, CodecCost] | None = None,
    task: str | None = None,
    max_loss: float = MAX_LOSS,
) -> Gains:
    """What safe codecs would bring.

    Args:
        watch: of any rank.
        found: the account of all.
        costs: of codecs on this machine, by spec; None: of an H200 for a GPU, and not known for a CPU.
        task: kind of task, for the evidence; None: what the model's modules look like.
        max_loss: points that a codec may have lost in a training of ours.
    """
    settings = watch.settings
    if watch.ranks == 1:
        return Gains(None, (), "One rank has nothing to exchange.")
    if settings.hook and settings.hook not in HALF_HOOKS:
        return Gains(
            None, (), f"Gradients go through the hook {settings.hook} already; these are its times, not DDP's."
        )
    if tiny(settings.bucket_bytes):
        return Gains(None, (), "While buckets are tiny, the network's rate does not show; then look again.")
    if found.network_seconds < SEEN * found.step_seconds:
        return Gains(None, (), "So little of the exchange is exposed that no codec could save anything worth having.")
    job = Job.of(watch, found)
    contest = _contest(job, costs)
    rate = _rate(contest, job)
    if rate is None:
        return Gains(None, (), "The exchange takes no longer than its messages do, however small: codecs cannot help.")
    if job.device == CPU and costs is None:
        return Gains(
            rate, (), "What codecs cost on this CPU is not known: gradwire doctor measures it, calibrate, too."
        )
    task = task or watch.task
    specs = candidates(task, max_loss)
    sent = contest.baseline(job.sends, bandwidth=rate).sent_bytes
    known = [(spec, contest.best(spec, bandwidth=rate)) for spec in specs if contest.knows(spec)]
    fewer = [(spec, prediction) for spec, prediction in known if prediction.sent_bytes < sent]
    ranked = sorted((_gain(job, spec, prediction, task, max_loss) for spec, prediction in fewer), key=_by_time)
    where = "measured here" if job.device == CPU else "of an H200"
    remark = f"Estimates by the planner, at the rate that was seen; costs of codecs {where}."
    return Gains(rate, tuple(ranked), remark)


def candidates(task: str | None = None, max_loss: float = MAX_LOSS) -> list[str]:
    """Codecs that our own trainings call safe, and FP16, which they are compared with."""
    return [FP16, *quality.safe(task, max_loss)]


def advised(found: Gains) -> Gain | None:
    """What to switch on: the fastest, if it is worth it; a codec only if it beats FP16 as clearly as the job itself."""
    half = next((g for g in found.codecs if g.codec == FP16), None)
    for gain in found.codecs:
        beaten = half is None or gain.codec == FP16 or gain.speedup >= WIN * half.speedup
        if gain.speedup >= WIN and beaten and gain.line is not None:
            return gain
    return None


def _by_time(gain: Gain) -> float:
    return gain.step_seconds


def _gain(job: Job, spec: str, prediction: Prediction, task: str | None, max_loss: float) -> Gain:
    seconds = job.step_seconds - job.network_seconds + prediction.parts["wait"]
    ranked = Ranked(codec=spec, notes=(), mode=prediction.mode, strategy=prediction.strategy)
    evidence, line = quality.standing(spec, task, max_loss).sentence, switch_on(ranked, job.per_node)
    if spec == FP16:
        evidence, line = "what codecs are compared with in our trainings", FP16_HOOK
    return Gain(spec, seconds, job.step_seconds / seconds, prediction.sent_bytes, evidence, line)


# ---------------------------------------------------------------- the planner, told of this job


def _contest(job: Job, costs: Mapping[str, CodecCost] | None) -> Contest:
    profile = _profile(job, costs)
    setup = {
        "model": job.name,
        "batch": BATCH,
        "gpus": job.ranks,
        "gpus_per_node": job.per_node,
        "bandwidth": FASTEST,
        "hardware": profile,
    }
    return Contest(_predict(job), profile, setup)


def _profile(job: Job, costs: Mapping[str, CodecCost] | None) -> Profile:
    base = Profile.load("h200")
    gloo = job.backend == "gloo"
    times = Times(
        batch=BATCH,
        forward_seconds=job.forward_seconds,
        backward_seconds=job.backward_seconds,
        optimizer_seconds=job.optimizer_seconds,
        source="measured: in this job",
    )
    network = Network(
        latency_seconds=GLOO_LATENCY if gloo else base.network.latency_seconds,
        efficiency=1.0,
        source="measured: in this job, but for the latency of a message",
        sums="ring" if gloo else base.network.sums,
    )
    known = base.codecs if costs is None else {FP32: base.codecs[FP32], **costs}
    return replace(base, name="this job", network=network, models={job.name: (times,)}, codecs=known)


def _predict(job: Job) -> Any:
    shape = ModelShape.evenly(job.name, job.shapes)

    def predict(**asked: Any) -> Prediction:
        peers = job.ranks // job.per_node if asked["strategy"] == HIERARCHICAL else job.ranks
        return perf.predict(**asked, workload=_workload(shape, asked["codec"], asked["mode"], max(2, peers)))

    return predict


@cache
def _workload(shape: ModelShape, codec: str, mode: str, workers: int) -> Workload:
    from gradwire.planner import own_workloads  # loads torch

    traces = Traces(own_workloads.content(shape, codec, ["auto"], (workers,)))
    return traces.workload(shape.name, traces.codecs()[0], "auto", OVERLAP if codec in DDP else mode, workers)


def _rate(contest: Contest, job: Job) -> float | None:
    """The rate at which DDP's exchange would leave exposed what was seen; None: no rate is as slow as that."""

    def exposed(rate: float) -> float:
        return contest.baseline(job.sends, bandwidth=rate).parts["wait"]

    low, high = SLOWEST, FASTEST
    if exposed(high) >= job.network_seconds:
        return None
    while high > (1 + PRECISION) * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if exposed(middle) > job.network_seconds else (low, middle)
    return high
