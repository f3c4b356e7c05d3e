"""What every codec must satisfy: the checks behind `gradwire check`, for ours and for yours.

    outcomes = conformance.run(codec)     # each with the check's name, its title, and what went wrong, if anything

Checks go by a codec's traits, never by its name: a claim is tried on those who make it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# in the order in which they are run; importing them fills CHECKS
from gradwire.conformance import face as face  # isort: skip
from gradwire.conformance import values as values  # isort: skip
from gradwire.conformance import wire as wire  # isort: skip
from gradwire.conformance import claims as claims  # isort: skip
from gradwire.conformance import memories as memories  # isort: skip
from gradwire.conformance import forms as forms  # isort: skip
from gradwire.conformance.check import CHECKS as CHECKS
from gradwire.conformance.check import Case as Case
from gradwire.conformance.check import Failed as Failed
from gradwire.conformance.check import Problem as Problem
from gradwire.conformance.check import cases as cases
from gradwire.core.codec import Codec


@dataclass(frozen=True)
class Outcome:
    """What became of one check of one codec.

    Args:
        codec: its spec.
        check: the check's name.
        title: what must hold.
        cases: how many were tried.
        problems: what went wrong, case by case.
    """

    codec: str
    check: str
    title: str
    cases: int
    problems: tuple[Problem, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all cases hold."""
        return not self.problems


def run(codec: Codec) -> Iterator[Outcome]:
    """Try all checks that are a codec's affair. Where the contract itself is broken, that is the only outcome.

    Args:
        codec: the codec.
    """
    first = CHECKS[0]
    broken = Case(first).problem(codec)
    if broken is not None:
        yield Outcome(codec.name, first.name, first.title, 1, (broken,))
        return
    tried: dict[str, list[Case]] = {}
    for case in cases(codec):
        tried.setdefault(case.check.name, []).append(case)
    for name, of_check in tried.items():
        check = of_check[0].check
        found = [case.problem(codec) for case in of_check]
        problems = tuple(problem for problem in found if problem is not None)
        yield Outcome(codec.spec, name, check.title, len(found), problems)
