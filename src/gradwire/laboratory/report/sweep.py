"""A what-if sweep as pictures: curves over one quantity, heat maps over two."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.baselines import FP16, FP32
from gradwire.laboratory.report.chart import Axis, Chart, HeatMap, Mark, Picture, Series, Value
from gradwire.planner.quantity import Quantity
from gradwire.planner.ranking import LABELS
from gradwire.planner.sweeps import METRICS, Curve, Sweep

MARKS = 4  # crossovers that are drawn; all of them are in words below
WIDE = 4  # from this ratio of the ends on, an axis is logarithmic


def pictures(sweep: Sweep, metric: str = "step") -> list[Picture]:
    """Times and speed-ups over one quantity; over two, a map of who is fastest, and one for each codec."""
    if len(sweep.quantities) == 1:
        return [times(sweep, metric), speedups(sweep, metric)]
    return [best(sweep, metric), *(surface(sweep, curve, metric) for curve in sweep.codecs)]


def title(sweep: Sweep) -> str:
    """Of a page: what is swept, and how far."""
    ranges = []
    for swept, values in zip(sweep.quantities, sweep.values, strict=True):
        low, high = (f"{v:.0f}" if swept.whole else swept.written(v) for v in (values[0], values[-1]))
        ranges.append(f"{swept.title} from {low} to {high}")
    return "What if: " + ", ".join(ranges)


def times(sweep: Sweep, metric: str) -> Chart:
    """Of every codec and of DDP itself."""
    (swept,), (xs,) = sweep.quantities, sweep.values
    series = [Series(c.label, xs, c.seconds(metric), role=_role(c)) for c in sweep.curves]
    return Chart(
        f"{sweep.setting}: {METRICS[metric]} by {swept.title}",
        x=_axis(swept, xs),
        y=Axis(METRICS[metric], log=_wide(series), unit="seconds"),
        series=series,
        subtitle=_source(sweep),
        notes=(*sweep.sentences(), *sweep.quality(), *sweep.notes, _inputs(sweep)),
        marks=_marks(sweep, only_faster=False),
    )


def speedups(sweep: Sweep, metric: str) -> Chart:
    """Over the faster of FP32 and FP16 DDP."""
    (swept,), (xs,) = sweep.quantities, sweep.values
    shown = sweep.codecs or list(sweep.curves)
    series = [Series(c.label, xs, sweep.speedup(c, None, metric), role=_role(c)) for c in shown]
    even = Series("no gain", xs, [1.0] * len(xs), role="reference")
    return Chart(
        f"{sweep.setting}: speed-up over the faster of FP32 and FP16 DDP",
        x=_axis(swept, xs),
        y=Axis(f"speed-up of {METRICS[metric]}", log=_wide(series), unit="ratio"),
        series=[*series, even],
        subtitle=_source(sweep),
        marks=_marks(sweep, only_faster=True),
    )


def surface(sweep: Sweep, curve: Curve, metric: str) -> HeatMap:
    """Of one codec over FP16 DDP; over FP32 DDP where the profile does not know the other."""
    over = FP16 if sweep.curve(FP16) else FP32
    return _map(
        sweep,
        f"{sweep.setting}: {curve.label} against {LABELS[over]}",
        sweep.speedup(curve, over, metric),
        f"speed-up of {METRICS[metric]} over {LABELS[over]}",
    )


def best(sweep: Sweep, metric: str) -> HeatMap:
    """Who is fastest, and by how much."""
    over = FP16 if sweep.curve(FP16) else FP32
    winners = sweep.best()
    gains = {c.codec: sweep.speedup(c, over, metric) for c in sweep.curves}
    values = [None if w is None else gains[w.codec][i] for i, w in enumerate(winners)]
    names = ["" if w is None else w.label for w in winners]
    heading = f"{sweep.setting}: the fastest choice"
    return _map(sweep, heading, values, f"speed-up of {METRICS[metric]} over {LABELS[over]}", names)


def _map(sweep: Sweep, heading: str, values: Sequence[Value], label: str, names: Sequence[str] = ()) -> HeatMap:
    across, up = sweep.quantities
    xs, ys = sweep.values
    columns = range(len(xs))
    # points run through the second quantity first
    grid = [[values[i * len(ys) + j] for i in columns] for j in range(len(ys))]
    whose = [[names[i * len(ys) + j] for i in columns] for j in range(len(ys))] if names else ()
    return HeatMap(
        heading,
        x=_axis(across, xs),
        y=_axis(up, ys),
        xs=xs,
        ys=ys,
        values=grid,
        label=label,
        names=whose,
        plain=[c.label for c in sweep.curves if c.baseline],
        subtitle=_source(sweep),
        notes=(*(sweep.sentences() if names else ()), *sweep.notes, *((_inputs(sweep),) if names else ())),
    )


def _role(curve: Curve) -> str:
    return "baseline" if curve.baseline else "codec"


def _axis(swept: Quantity, values: Sequence[float]) -> Axis:
    return Axis(swept.label, log=values[0] > 0 and values[-1] / values[0] >= WIDE, unit=swept.unit)


def _wide(series: Sequence[Series]) -> bool:
    known = [y for s in series for y in s.ys if y is not None]
    return bool(known) and max(known) >= WIDE * min(known) > 0


def _faster(sweep: Sweep) -> str:
    """The baseline to beat: the one that is faster at more points."""
    rows = [c.seconds() for c in (sweep.curve(FP32), sweep.curve(FP16)) if c is not None]
    if len(rows) < 2:
        return FP32 if sweep.curve(FP32) else FP16
    both = [(full, half) for full, half in zip(*rows, strict=True) if full is not None and half is not None]
    return FP16 if 2 * sum(half <= full for full, half in both) >= len(both) else FP32


def _marks(sweep: Sweep, *, only_faster: bool) -> list[Mark]:
    """Where codecs are even with DDP; few enough to be read: of several codecs, with the baseline to beat."""
    several = len(sweep.codecs) > 1
    faster = _faster(sweep)
    found = [c for c in sweep.crossovers if c.baseline == faster or not (several or only_faster)]
    return [Mark(c.at, f"{LABELS.get(c.codec, c.codec)} {c.label}" if several else c.label) for c in found[:MARKS]]


def _source(sweep: Sweep) -> str:
    return f"Predicted, not measured; hardware profile {sweep.first.hardware}"


def _inputs(sweep: Sweep) -> str:
    """How well what went in is known: what was measured, published and so on."""
    kinds: dict[str, list[str]] = {}
    for one in sweep.first.inputs:
        kinds.setdefault(one.source.partition(":")[0], []).append(one.name)
    return "What went in is " + "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()) + "."
