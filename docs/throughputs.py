"""docs/throughputs.md: every throughput that Beyond Throughput publishes, beside our model's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from gradwire.laboratory.reproduce import testbed
from gradwire.laboratory.reproduce.testbed import FP16, FP32, HARDWARE, Score
from gradwire.laboratory.reproduce.throughput import (
    BERT,
    ORTHOGONALIZATION,
    PAPER,
    POWERSGD,
    THC,
    TOPK_OVERHEAD,
    VGG19,
    Setting,
    compute_seconds,
)

GOOD = (0.1, 0.8)  # median error at most, and rank correlation at least, of a model that passes
WAYS: dict[str, Callable[[str, Setting], float | None]] = {
    "ours": lambda name, setting: (found := testbed.modelled(name, setting)) and found[0],
    "theirs": testbed.theirs,
    "in turn": testbed.in_turn,
}


def page() -> str:
    """The whole page."""
    found = {name: {way: _asked(name, ask) for way, ask in WAYS.items()} for name in (BERT, VGG19)}
    scores = {name: {way: testbed.score(name, values) for way, values in each.items()} for name, each in found.items()}
    count = sum(each["ours"].count for each in scores.values())
    tables = "".join(f"\n## {name}\n\n{_table(name, each)}" for name, each in found.items())
    return (
        f"# {count} published throughputs\n\n{PAPER}, reports rounds a second of {count} settings on two nodes of two "
        "A100 GPUs at 100 Gbit/s. They are the only throughputs of codecs on GPUs in the papers that we check, so they "
        f"are the only outside check that our model of GPUs has. {_verdict(scores)}\n\n{_scores(scores)}\n{HOW}\n"
        f"{_inferred()}{tables}\n## What explains the rest\n\n{_explained(found, scores)}"
    )


@cache
def fails() -> bool:
    """Whether the model does, with our costs and its overlap."""
    return not all(_passes(testbed.score(name, _asked(name, WAYS["ours"]))) for name in (BERT, VGG19))


def _asked(name: str, ask: Callable[[str, Setting], float | None]) -> dict[Setting, float]:
    return {s: value for s in testbed.timed(name) if (value := ask(name, s)) is not None}


def _passes(score: Score) -> bool:
    return score.median <= GOOD[0] and score.correlation >= GOOD[1]


def _verdict(scores: dict[str, dict[str, Score]]) -> str:
    wanted = f"a median error of at most {GOOD[0]:.0%} and a rank correlation of at least {GOOD[1]:g}"
    ours = [each["ours"] for each in scores.values()]
    told = "**fails**" if fails() else "passes"
    wrong, total = sum(s.wrong_side for s in ours), sum(s.count - 1 for s in ours)
    errors = " and ".join(f"{s.median:.0%} ({name})" for name, s in zip(scores, ours, strict=True))
    ranks = " and ".join(f"{s.correlation:+.2f}" for s in ours)
    return (
        f"With our codecs' costs and the overlap that it assumes, the model {told} it ({wanted} were wanted): its "
        f"median error is {errors}, its rank correlation {ranks}, and {wrong} of {total} settings are on the wrong "
        "side of FP16."
    )


def _scores(scores: dict[str, dict[str, Score]]) -> str:
    text = "| | model of the step | settings | median error | largest | rank correlation | wrong side of FP16 |\n"
    text += "|---|---|---|---|---|---|---|\n"
    for name, each in scores.items():
        for way, s in each.items():
            text += (
                f"| {name} | {way} | {s.count} | {s.median:.0%} | {s.largest:.0%} | {s.correlation:+.2f} | "
                f"{s.wrong_side} of {s.count - 1} |\n"
            )
    return text


HOW = f"""
Three ways to model a step, all with traced bytes. Forward and backward pass take as long as the fastest round that is
published ({1e3 * compute_seconds(BERT):.0f} ms of {BERT}, {1e3 * compute_seconds(VGG19):.1f} ms of {VGG19}), which is
an upper bound:

- **ours**, what `gradwire predict` would say: codecs cost what they do in profile `{HARDWARE}`, since there is none of
  an A100, and the exchange overlaps with the backward pass.
- **theirs**: the same with their codecs' costs, where the paper lets them be inferred.
- **in turn**: their costs, or ours where theirs are not known; backward pass, codec and exchange follow each other, and
  the network has the rate that their FP32 and FP16 imply. Those two numbers go into it.
"""


def _inferred() -> str:
    shares = ", ".join(f"{percent:g} % at b = {bits:g}" for bits, percent in TOPK_OVERHEAD[BERT].items())
    rates = " and ".join(f"{testbed.implied_rate(name) / 1e9:.0f} Gbit/s ({name})" for name in (BERT, VGG19))
    return (
        "How their costs were inferred. Top-k: table 4 has the share of a step that selection and rearrangement take "
        f"({shares} for {BERT}). PowerSGD: orthogonalisation takes {ORTHOGONALIZATION[BERT]} % ({BERT}) and "
        f"{ORTHOGONALIZATION[VGG19]} % ({VGG19}) of a step at r = 64; lower ranks are taken in proportion to r, which "
        "is assumed. THC: what the rotation adds between two columns of table 6; quantising is taken as nothing. "
        "TopKC: the paper does not tell. The rate: what FP32 sends more than FP16 over what it takes longer, if "
        f"nothing overlaps: {rates} of an all-reduce.\n"
    )


def _table(name: str, found: dict[str, dict[Setting, float]]) -> str:
    heads = ["setting", "b", "published", *(f"{way} | error" for way in WAYS), "side of FP16"]
    text = f"| {' | '.join(heads)} |\n|{'---|' * (4 + 2 * len(WAYS))}\n"
    for setting in testbed.timed(name):
        published = setting.rounds_per_second[name]
        cells = [setting.label, f"{setting.bits[name]:g}", f"{published:g}"]
        for values in found.values():
            value = values.get(setting)
            cells += ["-", "-"] if value is None else [f"{value:.2f}", f"{value / published - 1:+.0%}"]
        text += f"| {' | '.join([*cells, _side(name, setting, found)])} |\n"
    return text


def _side(name: str, setting: Setting, found: dict[str, dict[Setting, float]]) -> str:
    """Published, and who has it otherwise."""
    if setting is FP16:
        return "-"
    faster = setting.rounds_per_second[name] > FP16.rounds_per_second[name]
    others = [w for w, v in found.items() if setting in v and (v[setting] > v[FP16]) != faster]
    return ("faster" if faster else "slower") + (f"; not so: {', '.join(others)}" if others else "")


def _explained(found: dict[str, dict[str, dict[Setting, float]]], scores: dict[str, dict[str, Score]]) -> str:
    ours, turn = ([each[way] for each in scores.values()] for way in ("ours", "in turn"))
    worst = "; ".join(f"{name}: {_farthest(name, each['in turn']).label}" for name, each in found.items())
    hidden = " and ".join(
        f"{1e3 / FP32.rounds_per_second[name]:.0f} ms of {name} where the model has {1e3 / each['ours'][FP32]:.0f}"
        for name, each in found.items()
    )
    return (
        f"1. **Overlap.** The model hides most of an exchange at 100 Gbit/s behind the backward pass: FP32 takes "
        f"{hidden}. As if nothing overlapped, at the rate that their baselines imply, the median error falls from "
        f"{_both(ours)} to {_both(turn)}, and the settings on the wrong side of FP16 from "
        f"{sum(s.wrong_side for s in ours)} to {sum(s.wrong_side for s in turn)}.\n"
        "2. **Codecs' costs.** Ours are of another GPU and other kernels, and are wrong to either side: with them THC "
        f"is {_times(found, THC)} of what is published, PowerSGD {_times(found, POWERSGD)}.\n"
        "3. **Bytes.** Our Top-k packs its indices, so that it sends less than their b says.\n"
        f"4. What is left is largest for {worst}. Top-k alone goes by all-gather.\n"
        "\nSo a prediction for GPUs is as good as what is known of overlap and of the codecs' costs there. Answers for "
        "an H200 are no promise for another cluster: `gradwire calibrate` measures yours. On hosts where it did, the "
        "model is right to a few percent: [prediction.md](prediction.md).\n"
    )


def _times(found: dict[str, dict[str, dict[Setting, float]]], settings: Sequence[Setting]) -> str:
    """The range of our rounds a second over theirs."""
    ratios = [each["ours"][s] / s.rounds_per_second[name] for name, each in found.items() for s in settings]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _farthest(name: str, found: dict[Setting, float]) -> Setting:
    return max(found, key=lambda s: abs(found[s] / s.rounds_per_second[name] - 1))


def _both(scores: list[Score]) -> str:
    return " and ".join(f"{s.median:.0%}" for s in scores)
