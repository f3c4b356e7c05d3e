"""What only the model of the testbed of Beyond Throughput can tell: ratios of rounds a second, and bits from shapes.

The model is held against all throughputs that are published (`Evidence.model_error`); what is nearer to a limit than
its usual error there is open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwire.core.records import Record
from gradwire.laboratory.reproduce import throughput as paper
from gradwire.laboratory.reproduce.claim import Judged, Sure, all_of, at_least, at_most, judge, left_open
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.throughput import BERT, POWERSGD, VGG19, Setting
from gradwire.planner.workload import AFTER, shipped

_SATURATED = {s.codec: s for s in paper.THC}
FULL, PARTIAL, UNROTATED = (
    _SATURATED[f"thc(bits=4, rotation='{r}', aggregation='saturate')"] for r in ("full", "partial", "none")
)
SAME_BITS = 0.01  # of published bits an element, for ours to be the same
HALF = 0.6  # of r = 1's throughput that r = 64 may have, to be called nearly half
FACTOR = 2.0  # a share is like a published one from half of it to twice it
MODELLED = "rounds a second are modelled, with an H200's codecs"
OUR_KERNELS = "an H200 and other kernels than theirs"
MEASURED_AS = {BERT: "bert-large", VGG19: "vgg19"}  # whose gradients were encoded; theirs has fewer classes

Check = Callable[[Evidence], Judged]


def _ratios(evidence: Evidence, pairs: Sequence[tuple[Setting, Setting]]) -> tuple[dict[str, list[float]], str, bool]:
    """Rounds a second of the first over the second of each pair, by model; in words; whether costs were measured."""
    told, ratios, known = [], dict[str, list[float]](), True
    for model in (BERT, VGG19):
        for one, other in pairs:
            a, b = evidence.throughput(model, one), evidence.throughput(model, other)
            if a is not None and b is not None:
                known = known and a[1] and b[1]
                ratios.setdefault(model, []).append(a[0] / b[0])
                theirs = one.rounds_per_second[model] / other.rounds_per_second[model]
                told.append(f"{model}, {one.label} over {other.label}: {a[0] / b[0]:.2f} (theirs {theirs:.2f})")
    off = f"; the model is {100 * evidence.model_error:.0f} % off in the median" if told else ""
    return ratios, "; ".join(told) + off, known


def _asked(
    pairs: Sequence[tuple[Setting, Setting]],
    holds: Callable[[str, float, float], Sure],
    sure: bool,
    what: str,
    why: str,
) -> Check:
    """`holds` is asked about model, ratio and noise; `sure`: by measured costs alone."""

    def check(evidence: Evidence) -> Judged:
        ratios, told, known = _ratios(evidence, pairs)
        if not ratios:
            return left_open(f"a model of {what}")
        if sure and not known:
            return left_open(f"times of {what} on a GPU: the profile infers them", told)
        answers = [holds(m, r, evidence.model_error * r) for m, each in ratios.items() for r in each]
        return judge(all_of(answers), told, why, differs=MODELLED)

    return check


def ratio(pairs: Sequence[tuple[Setting, Setting]], least: float, sure: bool, what: str) -> Check:
    """Whether the first of each pair has `least` times the rounds a second of the second, on both of their models."""
    why = f"At least {least:g} was wanted in each."
    return _asked(pairs, lambda model, found, noise: at_least(found, least, noise), sure, what, why)


halves = _asked(
    [(POWERSGD[3], POWERSGD[0])],
    lambda model, found, noise: at_most(found, HALF, noise),
    True,
    "PowerSGD with r = 1 and 64",
    f"At most {HALF:g} of r = 1's throughput was wanted.",
)


def _alike(found: float, published: float, noise: float = 0.0) -> Sure:
    return all_of([at_least(found, published / FACTOR, noise), at_most(found, FACTOR * published, noise)])


rotation = _asked(
    [(FULL, UNROTATED)],
    lambda model, found, noise: _alike(1 - found, paper.ROTATION[model] / 100, noise),
    True,
    "THC with and without rotation",
    f"Their shares to a factor of {FACTOR:g}.",
)


def part(shares: Sequence[tuple[str, Setting, float]], what: str) -> Check:
    """Whether a codec takes such a share of their step as they found for its heaviest part.

    Args:
        shares: their model, their setting, and the percent of a step that they found.
        what: the part.
    """

    def check(evidence: Evidence) -> Judged:
        known = {(r.what.get("model"), r.what["codec"]): r for r in evidence.study.records if _as_graphs(r)}
        told, answers = [], list[Sure]()
        for name, setting, percent in shares:
            record = known.get((MEASURED_AS[name], setting.codec))
            if record is not None:
                whole = sum(record.outcome["graphs_seconds"].values()) * setting.rounds_per_second[name]
                answers.append(_alike(whole, percent / 100))
                told.append(f"{name}, {setting.label}: {100 * whole:.1f} % (theirs {percent:g} %)")
        if not answers:
            return left_open(f"times on a GPU of codecs with {what}")
        why = f"Their shares of {what} to a factor of {FACTOR:g} were wanted of the whole codec, in each."
        return judge(all_of(answers), "; ".join(told), why, differs=OUR_KERNELS)

    return check


def _as_graphs(record: Record) -> bool:
    return record.kind == "encode" and "graphs_seconds" in record.outcome


selection = part([(n, s, paper.TOPK_OVERHEAD[n][s.bits[n]]) for n in (BERT, VGG19) for s in paper.TOPK], "selection")
orthogonalization = part([(n, POWERSGD[3], paper.ORTHOGONALIZATION[n]) for n in (BERT, VGG19)], "orthogonalisation")


def bits(model: str, codec: str) -> float | None:
    """Bits an element that a worker hands over, from the shipped traces; None: not among them."""
    if not shipped().has(model, codec, "auto"):
        return None
    workload = shipped().workload(model, codec, "auto", AFTER, 4)
    return 8 * sum(e.num_bytes for u in workload.units for e in u.exchanges) / workload.elements


def bits_of_powersgd(evidence: Evidence) -> Judged:
    told, holds = [], []
    for name, (model, _) in paper.MODELS.items():
        for setting in POWERSGD:
            ours = bits(model, setting.codec)
            if ours is not None:
                holds.append(abs(ours / setting.bits[name] - 1) <= SAME_BITS)
                told.append(f"{name}, {setting.label}: {ours:.4f} (theirs {setting.bits[name]:g})")
    return judge(all(holds), "; ".join(told), f"Within {SAME_BITS:.0%} was wanted; from shapes, factors in FP32.")
