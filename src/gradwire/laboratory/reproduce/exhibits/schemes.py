"""Table 1 and figure 4: ways to add up a vector."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit, Picture, Scale, curve
from gradwire.laboratory.reproduce.inputs import SIZES
from gradwire.laboratory.reproduce.ours import GPUS_PER_NODE
from gradwire.laboratory.reproduce.setup import GPUS, RATE
from gradwire.laboratory.reproduce.study import Study
from gradwire.planner import published
from gradwire.planner.cost import cost

NUM_BYTES = SIZES["resnet50"].formula_bytes
AT = 64  # GPUs of figure 4
GIVEN = f"Milliseconds are of {NUM_BYTES / 1e6:g} MB (ResNet-50) at 10 Gbit/s, {AT} GPUs; latency is left out."
_FORMULAS = {
    "ring": published.ring_all_reduce,
    "tree": published.tree_all_reduce,
    "parameter server": published.parameter_server,
    "all-gather": published.all_gather,
}


@dataclass(frozen=True)
class Scheme:
    """`kind` and `way` are our model's words for it."""

    name: str
    kind: str
    way: str
    terms: str

    def formula(self, gpus: float) -> float:
        return _FORMULAS[self.name](NUM_BYTES, int(gpus), RATE)

    def ours(self, study: Study, gpus: float) -> float:
        cluster = study.ours_s.profile.cluster(int(gpus), GPUS_PER_NODE, RATE)
        return cost(self.kind, NUM_BYTES, cluster, self.way).seconds


RING = Scheme("ring", "sum", "ring", "2 (p-1) alpha + 2 beta n (p-1)/p")
TREE = Scheme("tree", "sum", "tree", "2 alpha log p + 2 beta n log p")
SERVER = Scheme("parameter server", "sum", "parameter_server", "2 alpha + 2 beta n (p-1)")
GATHER = Scheme("all-gather", "gather", "ring", "2 alpha + beta n (p-1)")


def _row(study: Study, scheme: Scheme, paper: str) -> tuple[Cell, ...]:
    return f"{scheme.name}, ms", paper, 1e3 * scheme.formula(AT), 1e3 * scheme.ours(study, AT), None


def _picture(study: Study, title: str, schemes: tuple[Scheme, ...]) -> Picture:
    ours = [curve(f"{s.name}, our model", GPUS, lambda p, s=s: s.ours(study, p)) for s in schemes]  # type: ignore[misc]
    formula = [curve(f"{s.name}, formula", GPUS, s.formula, "reference") for s in schemes]
    return Picture(title, Scale("GPUs"), Scale("exchange", log=True, unit="seconds"), (*ours, *formula))


def table1(study: Study) -> Exhibit:
    """Aggregation schemes."""
    schemes = (RING, TREE, SERVER)
    return Exhibit(
        id="table1",
        title="Table 1: what aggregation schemes cost",
        rows=tuple(_row(study, s, s.terms) for s in schemes),
        notes=(
            GIVEN,
            "The table is missing in our text of the paper; its entries are those of the dissertation's table 4.2.",
            "A tree in our model is pipelined: two copies, not 2 log p of them.",
        ),
        pictures=(_picture(study, "Table 1: aggregation schemes", schemes),),
    )


def fig4(study: Study) -> Exhibit:
    """All-reduce, all-gather, parameter server."""
    schemes = {RING: "fastest", GATHER: "slower", SERVER: "slowest"}
    return Exhibit(
        id="fig4",
        title="Figure 4: all-reduce against all-gather and parameter server",
        rows=tuple(_row(study, s, paper) for s, paper in schemes.items()),
        notes=(
            GIVEN,
            "The paper gives the order alone, which formula and model share; which vector it sent is not said.",
            "Our records have no parameter server.",
        ),
        pictures=(_picture(study, "Figure 4: collectives", tuple(schemes)),),
    )
