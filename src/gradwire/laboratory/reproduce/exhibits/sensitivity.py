"""How the grid's counts move when one assumption does."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.grid import Case, Tally, flat, setups, with_our_encoding
from gradwire.laboratory.reproduce.inputs import MEASURED, SIMULATED, m_set, s_set
from gradwire.laboratory.reproduce.ours import GPUS_PER_NODE, Ours
from gradwire.laboratory.reproduce.setup import RATE
from gradwire.laboratory.reproduce.study import Study
from gradwire.planner.profile import Profile


@dataclass(frozen=True, kw_only=True)
class World:
    """The grid's assumptions; one of them is changed at a time."""

    rate: float = RATE
    latency: float = 0.0
    encode_speed: float = 1.0
    compute_speed: float = 1.0
    gpus_per_node: int = GPUS_PER_NODE
    profile: str = MEASURED

    def tallies(self, study: Study) -> tuple[Tally, Tally, Tally]:
        """Case (i) by formula, (i) by our model, and (ii), flat and after the backward pass, by our model."""
        over = setups((self.rate,), encode_speed=self.encode_speed, compute_speed=self.compute_speed)
        inputs = replace(m_set() if self.profile == MEASURED else s_set(), latency=self.latency)
        v100 = Profile.load(self.profile)
        fast = with_our_encoding(v100, Profile.load(study.encoding))
        ddp = self._ours(Ours(v100, study.predict))
        ours = self._ours(Ours(fast, study.predict, flat))
        cases = (Case("", "", Formula(inputs, True)), Case("", "", ddp), Case("", "", ours, ddp))
        first, second, third = (case.tally(over) for case in cases)
        return first, second, third

    def _ours(self, ours: Ours) -> Ours:
        return replace(ours, latency=self.latency, gpus_per_node=self.gpus_per_node)


WORLDS = (
    *(("bandwidth", f"{r:g} Gbit/s", World(rate=r * 1e9)) for r in (1, 2, 5, 8, 10, 12.5, 25, 50, 100)),
    *(("latency", f"{us} us", World(latency=us * 1e-6)) for us in (0, 5, 15, 50, 100)),
    *(("encode speed", f"x{f:g}", World(encode_speed=f)) for f in (0.1, 0.3, 1, 3, 10)),
    *(("compute speed", f"x{f:g}", World(compute_speed=f)) for f in (1, 2, 3.26, 8)),
    *(("GPUs a node", f"{g}", World(gpus_per_node=g)) for g in (1, 4, 8)),
    *(("inputs", name, World(profile=p)) for name, p in (("M-set", MEASURED), ("S-set", SIMULATED))),
)


def sensitivity(study: Study) -> Exhibit:
    """One row for each changed assumption."""
    return Exhibit(
        id="sensitivity",
        title="How the wins move: 100 set-ups at one bandwidth",
        columns=(
            "changed",
            "to",
            "(i) formula, FP32",
            "(i) formula, FP16",
            "(i) our model, FP32",
            "(i) our model, FP16",
            "(ii) our model, FP32",
            "(ii) our model, FP16",
            "(ii) our model, FP16 by > 5 %",
        ),
        rows=tuple(_row(study, quantity, value, world) for quantity, value, world in WORLDS),
        notes=(
            "Wins over DDP with FP32 or FP16 gradients. (i): published encode times, all-gather. (ii): our encode "
            "times, of whole models on an H200, scatter-reduce-gather, flat; both after the backward pass.",
            "Encode speed is that of codecs; the casts of FP16 stay as they are.",
            "What is not changed: 10 Gbit/s, M-set, no latency, 4 GPUs a node.",
            "Latency is a GPU hop's in the formula and a message's between nodes in our model.",
            "Compute x3.26 is AMP on a V100 as our notes have it, x8 a newer GPU; encoding stays as it is.",
            "With 8 GPUs a node the set-ups with 8 GPUs have no network at all; the formula does not know nodes.",
        ),
    )


def _row(study: Study, quantity: str, value: str, world: World) -> tuple[Cell, ...]:
    formula, first, second = world.tallies(study)
    return (
        quantity,
        value,
        formula.fp32,
        formula.fp16,
        first.fp32,
        first.fp16,
        second.fp32,
        second.fp16,
        second.clear_fp16,
    )
