"""Figures 2, 5, 14, 15 and 16: exchange and compression beside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gradwire.core.units import format_rate
from gradwire.laboratory.reproduce.claims.utility_counts import RANKS, TOP_K, TOP_K_LIMIT, scaling
from gradwire.laboratory.reproduce.claims.utility_times import R4, SIGN, SIGN_LIMIT
from gradwire.laboratory.reproduce.exhibit import NO_BARS, Cell, Exhibit, Picture, Scale, answer, compared, curve
from gradwire.laboratory.reproduce.measured import overlap_ratios
from gradwire.laboratory.reproduce.ours import OVERLAP
from gradwire.laboratory.reproduce.setup import GPUS, LABEL, MODELS, SYNC, Setup, Source, usual
from gradwire.laboratory.reproduce.study import Study

NO_CONTENTION = "The formula has no contention on the GPU, so it says nothing about overlapped compression."
WHOLE = "Our model shares the GPU between encoding and backward pass, but knows encode times of whole models only."


def _saved(source: Source, setup: Setup) -> float:
    return 100 * (1 - source.seconds(setup, SYNC) / source.without_overlap(setup))


def _overlap_rows(study: Study, setup: Setup) -> list[tuple[Cell, ...]]:
    by, name = study.measured_pair, LABEL[setup.model]
    return [
        compared(f"{name}, with overlap, ms", lambda s: s.seconds(setup, SYNC), by, scale=1e3),
        compared(f"{name}, without, ms", lambda s: s.without_overlap(setup), by, scale=1e3),
        compared(f"{name}, saved, %", lambda s: _saved(s, setup), by, paper=46 if setup.model == "resnet50" else None),
    ]


def fig2(study: Study) -> Exhibit:
    """DDP with and without overlap."""
    return Exhibit(
        id="fig2",
        title="Figure 2: overlapping DDP's exchange with the backward pass, 64 GPUs",
        rows=tuple(row for m in MODELS for row in _overlap_rows(study, usual(m, 64))),
        notes=(NO_BARS, "The paper says up to 46 % for ResNet-50. Formula: M-set."),
    )


def _both_modes(study: Study, setup: Setup, codec: str) -> list[tuple[Cell, ...]]:
    """Overlapped and sequential milliseconds of a codec."""
    overlapped = answer(lambda: 1e3 * float(study.ours_m.ask(setup, codec, mode=OVERLAP).sync_seconds))
    return [
        (f"{setup}: {codec} overlapped, ms", None, None, overlapped, None),
        compared(f"{setup}: {codec} after, ms", lambda s: s.seconds(setup, codec), study.measured_pair, scale=1e3),
    ]


def fig5(study: Study) -> Exhibit:
    """Three methods and DDP, both ways."""
    setup = usual("resnet50", 64)
    rows = [row for codec in (R4, TOP_K[0], SIGN) for row in _both_modes(study, setup, codec)]
    rows += _overlap_rows(study, setup)[:2]
    for what, ratio in overlap_ratios(study.records):
        where = f"{what['model']}, {what['hosts']} hosts, {format_rate(float(what['bits_per_second']))}"
        rows.append((f"{where}: {what['configuration']} overlapped / after", None, None, None, ratio))
    return Exhibit(
        id="fig5",
        title="Figure 5: compression beside the backward pass and after it, ResNet-50, 64 GPUs",
        rows=tuple(rows),
        notes=(
            NO_BARS,
            "The paper: overlapped compression is slower than sequential compression for each of the three.",
            NO_CONTENTION,
            WHOLE,
            "Measured: steps on emulated hosts, on CPUs, where a ratio above 1 agrees with the paper.",
        ),
    )


def _overlapped(study: Study, id: str, title: str, codecs: tuple[str, ...], limit: dict[str, int]) -> Exhibit:
    setups = [s for m in MODELS for s in scaling(m, limit)]
    ours = study.ours_m

    def against_sync(model: str, codec: str, gpus: float) -> float:
        setup = usual(model, int(gpus))
        return float(ours.ask(setup, codec, mode=OVERLAP).sync_seconds) / ours.seconds(setup, SYNC)

    rows = [row for s in setups for c in codecs for row in _both_modes(study, s, c)]
    wins = answer(lambda: sum(against_sync(s.model, c, s.gpus) < 1 for s in setups for c in codecs))
    told = 0 if id == "fig14" else None
    pictures = tuple(_by_gpus(title, m, codecs, limit, partial(against_sync, m)) for m in MODELS)
    return Exhibit(
        id=id,
        title=title,
        rows=((f"wins over syncSGD when overlapped, of {len(setups) * len(codecs)}", told, None, wins, None), *rows),
        notes=(NO_BARS, NO_CONTENTION, WHOLE),
        pictures=pictures,
    )


def _by_gpus(
    title: str, model: str, codecs: tuple[str, ...], limit: dict[str, int], of: Callable[[str, float], float]
) -> Picture:
    gpus = [p for p in GPUS if p <= limit.get(model, max(GPUS))]
    curves = tuple(curve(codec, gpus, partial(of, codec)) for codec in codecs)
    y = Scale("overlapped time over syncSGD's, our model", unit="ratio")
    return Picture(f"{title}, {LABEL[model]}", Scale("GPUs"), y, curves)


def fig14(study: Study) -> Exhibit:
    """PowerSGD."""
    return _overlapped(study, "fig14", "Figure 14: overlapped PowerSGD", RANKS, {})


def fig15(study: Study) -> Exhibit:
    """MSTop-K."""
    return _overlapped(study, "fig15", "Figure 15: overlapped MSTop-K", TOP_K, TOP_K_LIMIT)


def fig16(study: Study) -> Exhibit:
    """signSGD."""
    return _overlapped(study, "fig16", "Figure 16: overlapped signSGD", (SIGN,), SIGN_LIMIT)
