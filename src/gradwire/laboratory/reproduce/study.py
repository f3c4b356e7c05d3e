"""All that exhibits draw on: the formula with either set, our model with either profile, and our records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gradwire.core.records import Record
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.inputs import MEASURED, SIMULATED, m_set, s_set
from gradwire.laboratory.reproduce.ours import Ours, Predict, shipped_predict
from gradwire.planner.profile import Profile


@dataclass(frozen=True)
class Study:
    """`predict` is the model that is asked; `encoding` the hardware whose encode times the grid's case (ii) takes."""

    records: Sequence[Record] = ()
    predict: Predict = shipped_predict
    encoding: str = "h200"

    @cached_property
    def formula_m(self) -> Formula:
        return Formula(m_set())

    @cached_property
    def formula_s(self) -> Formula:
        return Formula(s_set())

    @cached_property
    def ours_m(self) -> Ours:
        return Ours(Profile.load(MEASURED), self.predict)

    @cached_property
    def ours_s(self) -> Ours:
        return Ours(Profile.load(SIMULATED), self.predict)

    @property
    def measured_pair(self) -> tuple[Formula, Ours]:
        """Who is asked about what the study measured."""
        return self.formula_m, self.ours_m

    @property
    def simulated_pair(self) -> tuple[Formula, Ours]:
        """Who is asked about what the study simulated."""
        return self.formula_s, self.ours_s
