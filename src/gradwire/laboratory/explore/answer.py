"""What the page answers for one position of its sliders. All numbers are those of `gradwire advise`.

found = answer(Question(model="bert-base", gpus=128, bandwidth=25e9))
print(found.sentence)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gradwire import planner
from gradwire.core.baselines import FP16, FP32, MAX_LOSS
from gradwire.core.errors import GradwireError
from gradwire.core.units import format_milliseconds
from gradwire.laboratory.report.chart import Axis, Bars, HeatMap, Part
from gradwire.planner.advisor import Advice, least_speedup
from gradwire.planner.profile import Profile
from gradwire.planner.quantity import QUANTITIES, setting
from gradwire.planner.ranking import LABELS, Contest, Ranked

RATES = (0.1e9, 0.2e9, 0.5e9, 1e9, 2e9, 5e9, 10e9, 25e9, 50e9, 100e9, 200e9, 400e9)  # of a node, bit/s
GPUS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PER_NODE = (1, 2, 4, 8)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ENCODE_TIMES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LOSSES = tuple(n / 10 for n in range(51))  # points
MAP_RATES = RATES[3:]
MAP_GPUS = (8, 16, 32, 64, 128, 256, 512)
COMPUTE = ("forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Question:
    """Where the sliders stand."""

    model: str = "resnet50"
    batch: int = 64  # of one GPU
    gpus: int = 64
    gpus_per_node: int = 8
    bandwidth: float = 10e9  # of a node, bit/s
    encode_time: float = 1.0  # of codecs, times the profile's
    max_loss: float = MAX_LOSS  # points that a codec may have lost in our trainings
    hardware: str = "h200"

    @property
    def setting(self) -> str:
        """In words."""
        return setting({name: getattr(self, name) for name in ("model", "batch", "gpus", "gpus_per_node", "bandwidth")})

    @property
    def command(self) -> str | None:
        """What asks the same on a terminal; None: `gradwire advise` takes encode times as the profile has them."""
        if self.encode_time != 1:
            return None
        told = f"gradwire advise --model {self.model} --batch {self.batch} --gpus {self.gpus}"
        told += f" --gpus-per-node {self.gpus_per_node} --bandwidth {self.bandwidth / 1e9:g}gbit"
        told += f" --max-loss {self.max_loss:g}" * (self.max_loss != MAX_LOSS)
        return told + f" --hardware {self.hardware}" * (self.hardware != "h200")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is shown at once. `notes`: what was not measured, and how sure it is."""

    kind: str  # of verdict, as `gradwire advise` tells them
    sentence: str
    line: str | None  # of code
    steps: Bars | None
    notes: tuple[str, ...]


def models(hardware: str) -> list[str]:
    """Those whose times the profile knows."""
    return sorted(Profile.load(hardware).models)


def fitting(gpus: int, gpus_per_node: int) -> int:
    """The next number of GPUs that fills nodes.

    >>> fitting(2, 8), fitting(64, 8)
    (8, 64)
    """
    return max(gpus, gpus_per_node)


def answer(question: Question) -> Answer:
    """The recommendation and the step times of safe codecs beside those of DDP.

    Example:
        >>> fast = answer(Question(bandwidth=400e9))
        >>> fast.kind
        'not worth it'
        >>> fast.steps.groups[0]
        'FP16 DDP'
    """
    try:
        found = _advice(question)
    except GradwireError as problem:  # a set-up that cannot be: what is wrong is said in its place
        return Answer(kind="unknown", sentence=str(problem), line=None, steps=None, notes=())
    return Answer(
        kind=found.verdict.kind,
        sentence=found.verdict.sentence,
        line=found.verdict.line,
        steps=_steps(question, found),
        notes=(*found.remarks, found.certainty.sentence),
    )


@lru_cache(maxsize=256)
def _advice(question: Question) -> Advice:
    return planner.advise(
        model=question.model,
        batch=question.batch,
        gpus=question.gpus,
        gpus_per_node=question.gpus_per_node,
        bandwidth=question.bandwidth,
        hardware=question.hardware,
        max_loss=question.max_loss,
        encode_speed=1 / question.encode_time,
    )


def _steps(question: Question, advice: Advice) -> Bars:
    """A bar each, the fastest first."""
    known = [r for r in (*advice.baselines, *advice.ranking) if r.step_seconds is not None]
    ordered = sorted(known, key=_seconds)
    return Bars(
        f"A step with each safe codec: {question.setting}",
        Axis("step time", unit="seconds"),
        [LABELS.get(r.codec, r.codec) for r in ordered],
        [Part("computing", [_computing(r) for r in ordered], 1), Part("waiting", [_waiting(r) for r in ordered], 2)],
        roles=["baseline" if r.codec in LABELS else "codec" for r in ordered],
        ends=[f"{format_milliseconds(_seconds(r))} · {r.speedup or 1:.2f}×" for r in ordered],
        subtitle=f"Predicted, not measured; hardware profile {question.hardware}",
        notes=["×: how many times as fast as the faster of FP32 and FP16 DDP.", *_evidence(ordered)],
    )


def _seconds(one: Ranked) -> float:
    return one.step_seconds or 0.0


def _computing(one: Ranked) -> float:
    return sum((one.parts or {})[name] for name in COMPUTE)


def _waiting(one: Ranked) -> float:
    return max(0.0, _seconds(one) - _computing(one))


def _evidence(ordered: Sequence[Ranked]) -> list[str]:
    return [f"{r.codec} in our trainings: {r.evidence}." for r in ordered if r.evidence]


# -------------------------------------------------------------------- the map


def choices(question: Question) -> HeatMap | None:
    """What `gradwire advise` would say at other bandwidths and numbers of GPUs; None where nothing can be asked.

    Where the question itself stands is marked, if it is on the map.
    """
    place = replace(question, bandwidth=MAP_RATES[0], gpus=fitting(MAP_GPUS[0], question.gpus_per_node))
    try:
        drawn = _map(place)
    except GradwireError:
        return None
    rows, columns = list(drawn.ys), list(drawn.xs)
    marked = question.gpus in rows and question.bandwidth in columns
    return replace(drawn, here=(rows.index(question.gpus), columns.index(question.bandwidth)) if marked else None)


@lru_cache(maxsize=64)
def _map(place: Question) -> HeatMap:
    """`place`: everything but what runs along the sides."""
    gpus = [g for g in MAP_GPUS if g % place.gpus_per_node == 0]
    safe = [r.codec for r in _advice(place).ranking if r.step_seconds is not None]
    profile = Profile.load(place.hardware)
    setup = {"model": place.model, "batch": place.batch, "gpus_per_node": place.gpus_per_node, "hardware": profile}
    contest = Contest(planner.predict, profile, {**setup, "encode_speed": 1 / place.encode_time})
    enough = 100 * (least_speedup() - 1)
    cells = [[_cell(contest, safe, bandwidth=rate, gpus=g) for rate in MAP_RATES] for g in gpus]
    return HeatMap(
        f"What to use at other bandwidths and numbers of GPUs: {place.model}, batch {place.batch}",
        Axis(QUANTITIES["bandwidth"].label, unit="rate"),
        Axis(QUANTITIES["gpus"].label, unit="count"),
        MAP_RATES,
        gpus,
        [[speedup for _, speedup in row] for row in cells],
        "times as fast as the faster of FP32 and FP16 DDP",
        names=[[name for name, _ in row] for row in cells],
        plain=[LABELS[FP16], LABELS[FP32]],
        notes=[f"A codec is named where it is safe and {enough:.0f} % faster. The frame: where you are."],
    )


def _cell(contest: Contest, codecs: Sequence[str], *, bandwidth: float, gpus: int) -> tuple[str, float]:
    """Who is worth it there, and how many times as fast as DDP; DDP itself where nobody is."""
    ddp = contest.reference(bandwidth=bandwidth, gpus=gpus)
    tried = [contest.best(codec, bandwidth=bandwidth, gpus=gpus) for codec in codecs]
    best = min((p for p in tried if p.fits is not False), key=lambda p: p.step_seconds, default=ddp)
    speedup = ddp.step_seconds / best.step_seconds
    return (best.codec, speedup) if speedup > least_speedup() else (LABELS[ddp.codec], 1.0)
