"""Bugs to plant, one at a time, to see whether a test catches them: tables by theme, which `tests/mutants.py` runs."""

from __future__ import annotations

from planted_bugs.checkpoints import CHECKPOINTS
from planted_bugs.codecs import CODECS
from planted_bugs.controllers import CONTROLLERS
from planted_bugs.dtypes import DTYPES
from planted_bugs.exchanges import EXCHANGES
from planted_bugs.graphs import GRAPHS
from planted_bugs.mutant import Mutant
from planted_bugs.places import PLACES
from planted_bugs.planner import PLANNER
from planted_bugs.state import STATE
from planted_bugs.traps import TRAPS
from planted_bugs.units import UNITS

__all__ = ["MUTANTS", "THEMES", "Mutant"]

THEMES = {
    "codecs": CODECS,
    "state": STATE,
    "units": UNITS,
    "dtypes": DTYPES,
    "places": PLACES,
    "graphs": GRAPHS,
    "exchanges": EXCHANGES,
    "checkpoints": CHECKPOINTS,
    "controllers": CONTROLLERS,
    "planner": PLANNER,
    "traps": TRAPS,
}
MUTANTS = [mutant for table in THEMES.values() for mutant in table]
