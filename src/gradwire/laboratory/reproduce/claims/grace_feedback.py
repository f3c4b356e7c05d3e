"""GRACE's findings about error feedback, by trainings with it and without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradwire.laboratory.reproduce import grace
from gradwire.laboratory.reproduce.claim import Judged, Sure, all_of, judge, left_open, more_than_half
from gradwire.laboratory.reproduce.claims.grace_quality import base, files, ncf, unlike
from gradwire.laboratory.reproduce.evidence import Evidence, Trained

SPARSE = ("topk", "threshold", "dgc", "randomk", "mstopk", "gtopk", "topkc", "globaltopk", "sketchedsgd", "randomblock")


def effects(trained: Trained, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """How much better each codec is with error feedback, and its noise; one that we scaled for it says nothing."""
    found, wanted = {}, set(names) - set(grace.SCALED)
    for group in trained.codecs:
        codec = group.first.codec
        with_it, without = trained.find(codec, memory=True), trained.find(codec, memory=False)
        if with_it is not None and without is not None and base(group) in wanted:
            found[codec] = (trained.gain(with_it, without), trained.noise(with_it, without))
    return found


def _told(trained: Trained, found: dict[str, tuple[float, float]]) -> str:
    return f"{trained.name}: " + ", ".join(f"{codec} {trained.told(gain)}" for codec, (gain, _) in found.items())


def _sign(effect: tuple[float, float], better: bool) -> Sure:
    """Whether error feedback helps, or harms, by more than seeds."""
    gain, noise = effect
    return None if abs(gain) <= noise else (gain > 0) is better


def helps(names: Sequence[str], what: str, better: bool, listed: bool = False) -> Callable[[Evidence], Judged]:
    """Whether error feedback helps (or harms) the most of them, on every task but NCF.

    Where the claim has `listed` them, half at least must have been tried.
    """

    def check(evidence: Evidence) -> Judged:
        apart = evidence.of_model("ncf")
        found = [(t, e) for t in evidence.tasks.values() if t is not apart and (e := effects(t, names))]
        answers = [_sign(effect, better) for _, each in found for effect in each.values()]
        if not answers:
            return left_open(f"{what} both with error feedback and without, unscaled")
        told = "; ".join(_told(t, each) for t, each in found)
        tasks = [t for t, _ in found]
        tried = {codec.partition("(")[0] for _, each in found for codec in each}
        if listed and 2 * len(tried) < len(names):
            return left_open(f"more than {len(tried)} of {len(names)} of them both ways, unscaled", told, files(tasks))
        why = f"It should {'improve' if better else 'harm'} more than half of {len(answers)}, by more than seeds."
        return judge(more_than_half(answers), told, why, files(tasks), differs=unlike(tasks))

    return check


def only_ncf(evidence: Evidence) -> Judged:
    """Worse with it there, and nowhere else."""
    apart = ncf(evidence)
    here = effects(apart, grace.HURT_ON_NCF) if apart is not None else {}
    rest = [t for t in evidence.tasks.values() if t is not apart]
    others = [(t, e) for t in rest if (e := effects(t, grace.HURT_ON_NCF))]
    if apart is None or not here or not others:
        return left_open("Top-k, 8-bit and Natural with and without error feedback, on NCF and on another task")
    hurt = all_of(_sign(effect, better=False) for effect in here.values())
    elsewhere = [f"{codec} on {t.name}" for t, each in others for codec, e in each.items() if _sign(e, False)]
    told = "; ".join([_told(apart, here), *(_told(t, each) for t, each in others)])
    why = f"Worse on NCF was wanted of each, and nowhere else; worse elsewhere: {', '.join(elsewhere) or 'none'}."
    tasks = [apart, *(t for t, _ in others)]
    return judge(all_of([hurt, not elsewhere]), told, why, files(tasks), differs=unlike(tasks))
