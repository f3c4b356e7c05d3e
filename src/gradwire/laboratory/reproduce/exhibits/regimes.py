"""Figures 3, 12 and 18 to 21: what if the network, the computer or the codec were different. All simulated."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from gradwire.laboratory.reproduce.claims.utility_regimes import FASTER, NEAR, SMALL_BATCH
from gradwire.laboratory.reproduce.claims.utility_times import R4
from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit, Picture, Scale, both_curves, compared
from gradwire.laboratory.reproduce.setup import LABEL, MODELS, SYNC, Setup, Source, speedup, usual
from gradwire.laboratory.reproduce.study import Study

RATES = tuple(1e9 * r for r in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 25, 30))
SPEEDS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
BATCHES = {"resnet50": (16, 32, 64), "resnet101": (16, 32, 64), "bert-base": (4, 8, 12)}
S_SET = "Formula: S-set. Bandwidths of an axis go into the formula as they are."
AT = "The paper does not say how many GPUs; 64 are taken."


def _seconds(setup: Setup, codec: str, source: Source, rate: float) -> float:
    return source.seconds(setup.at(bits_per_second=rate, face_value=True), codec)


def _over_bandwidth(study: Study, title: str, model: str) -> Picture:
    setup, by = usual(model, 64), study.simulated_pair
    sync, formula = both_curves("syncSGD", RATES, partial(_seconds, setup, SYNC), by)
    powersgd = both_curves("PowerSGD rank 4", RATES, partial(_seconds, setup, R4), by)
    return Picture(
        f"{title}, {LABEL[model]}",
        Scale("bandwidth", log=True, unit="rate"),
        Scale("backward and exchange", log=True, unit="seconds"),
        (replace(sync, role="baseline"), formula, *powersgd),
    )


def _crossover_row(study: Study, model: str, paper: str) -> tuple[Cell, ...]:
    def ask(source: Source) -> float | None:
        found = source.crossover(usual(model, 64), R4)
        return None if found is None else found / 1e9

    return compared(f"{LABEL[model]}: crossover, Gbit/s", ask, study.simulated_pair, paper=paper)


def _bandwidth_rows(study: Study, model: str) -> list[tuple[Cell, ...]]:
    def row(rate: float) -> tuple[Cell, ...]:
        setup = usual(model, 64).at(bits_per_second=rate, face_value=True)
        name = f"{LABEL[model]}, {rate / 1e9:g} Gbit/s: PowerSGD's speed-up"
        return compared(name, lambda s: speedup(s, setup, R4), study.simulated_pair)

    return [row(rate) for rate in RATES]


def _bandwidth(study: Study, id: str, title: str, told: dict[str, str], notes: tuple[str, ...]) -> Exhibit:
    rows = [_crossover_row(study, m, paper) for m, paper in told.items()]
    return Exhibit(
        id=id,
        title=title,
        rows=(*rows, *(row for m in told for row in _bandwidth_rows(study, m))),
        notes=(S_SET, *notes, "The markers of the figure, which are measurements, are not in our text."),
        pictures=tuple(_over_bandwidth(study, title.partition(":")[0], m) for m in told),
    )


def fig3(study: Study) -> Exhibit:
    """ResNet-101 over bandwidth."""
    return _bandwidth(study, "fig3", "Figure 3: ResNet-101 over bandwidth, batch 64, 64 GPUs", {"resnet101": "8.2"}, ())


def fig19(study: Study) -> Exhibit:
    """All three."""
    told = {"resnet50": "gains to 7, loses from 9", "resnet101": "8.2 (figure 3)", "bert-base": "about 15"}
    return _bandwidth(study, "fig19", "Figure 19: three models over bandwidth", told, (AT,))


def _ratio_row(study: Study, setup: Setup, within: float | None) -> tuple[Cell, ...]:
    how = "all buckets but the last hidden" if within is None else f"within {100 * within:g} %"
    small = setup.batch == SMALL_BATCH[setup.model]
    paper = ("about 4" if setup.model == "resnet101" else "below 4") if small else None
    return compared(
        f"{setup}: times smaller, {how}", lambda s: s.required(setup, within), study.simulated_pair, paper=paper
    )


def _ratio(study: Study, id: str, title: str, models: tuple[str, ...], notes: tuple[str, ...]) -> Exhibit:
    setups = [Setup(model=m, batch=b, gpus=64) for m in models for b in BATCHES[m]]

    def needed(model: str, source: Source, batch: float) -> float | None:
        found = source.required(Setup(model=model, batch=int(batch), gpus=64), NEAR)
        return found if math.isfinite(found) else None

    curves = [c for m in models for c in both_curves(LABEL[m], BATCHES[m], partial(needed, m), study.simulated_pair)]
    return Exhibit(
        id=id,
        title=title,
        rows=tuple(_ratio_row(study, s, within) for s in setups for within in (None, NEAR)),
        notes=(
            S_SET,
            "Near linear is not defined; two definitions are tried. Our model knows the second alone.",
            *notes,
        ),
        pictures=(
            Picture(title, Scale("batch size"), Scale("times smaller, within 10 %", unit="ratio"), tuple(curves)),
        ),
    )


def fig12(study: Study) -> Exhibit:
    """ResNet-101."""
    title = "Figure 12: compression that ResNet-101 needs for near-linear scaling, 64 GPUs, 10 Gbit/s"
    return _ratio(study, "fig12", title, ("resnet101",), ())


def fig18(study: Study) -> Exhibit:
    """All three."""
    title = "Figure 18: compression needed for near-linear scaling, 10 Gbit/s"
    return _ratio(
        study, "fig18", title, MODELS, (AT, "Small batches: 16, and 4 for BERT; the paper's are not in the text.")
    )


def _faster(model: str, encode_too: bool, source: Source, factor: float) -> float:
    setup = usual(model, 64).at(compute_speed=factor, encode_speed=factor if encode_too else 1.0)
    return speedup(source, setup, R4)


def _factor_for(speed: float, source: Source) -> float:
    """How much faster compute has to be for PowerSGD to reach a speed-up on ResNet-50."""
    low, high = 1.0, 16.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _faster("resnet50", True, source, middle) < speed else (low, middle)
    return low


def fig20(study: Study) -> Exhibit:
    """Faster compute."""
    by = study.simulated_pair
    rows = [
        compared(
            f"{LABEL[m]}, compute and encoding x{f:g}: PowerSGD's speed-up",
            partial(_faster, m, True, factor=f),
            by,
            paper=1.75 if (m, f) == ("resnet50", FASTER) else None,
        )
        for m in MODELS
        for f in SPEEDS
    ]
    rows += [
        compared("ResNet-50, compute alone x3.5", partial(_faster, "resnet50", False, factor=FASTER), by),
        compared("ResNet-50: compute at which the speed-up is 1.75", partial(_factor_for, 1.75), by, paper=FASTER),
    ]
    curves = [c for m in MODELS for c in both_curves(LABEL[m], SPEEDS, partial(_faster, m, True), by)]
    return Exhibit(
        id="fig20",
        title="Figure 20: faster compute at 10 Gbit/s",
        rows=tuple(rows),
        notes=(
            S_SET,
            AT,
            "The text says that encoding becomes as much faster; its 1.75 is nearer to encoding that does not.",
        ),
        pictures=(
            Picture(
                "Figure 20: faster compute and encoding",
                Scale("compute speed"),
                Scale("PowerSGD's speed-up", unit="ratio"),
                tuple(curves),
            ),
        ),
    )


def _traded(model: str, more: int, source: Source, k: float) -> float:
    return source.seconds(usual(model, 64).at(encode_speed=k, ratio=1 / (k * more)), R4)


def _over_k(study: Study, model: str) -> Picture:
    by = study.simulated_pair
    curves = [
        c for more in (1, 2, 3) for c in both_curves(f"l = {more}", (1, 2, 3, 4), partial(_traded, model, more), by)
    ]
    y = Scale("backward and exchange", unit="seconds")
    return Picture(f"Figure 21: {LABEL[model]}", Scale("k"), y, tuple(curves))


def fig21(study: Study) -> Exhibit:
    """Less encoding for more bytes."""
    by, cases = study.simulated_pair, [(m, more) for m in MODELS for more in (1, 2, 3)]
    rows = [
        compared(f"{LABEL[m]}, l = {more}, k = {k}: ms", partial(_traded, m, more, k=k), by, scale=1e3)
        for m, more in cases
        for k in (1, 2, 3, 4)
    ]
    return Exhibit(
        id="fig21",
        title="Figure 21: k times less encoding for l k times the bytes, PowerSGD rank 4, 10 Gbit/s",
        rows=tuple(rows),
        notes=(S_SET, AT, "The paper: any reduction of encoding helps, at whatever cost in bytes."),
        pictures=tuple(_over_k(study, m) for m in MODELS),
    )
