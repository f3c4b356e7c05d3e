"""Bugs to plant, one at a time, to see whether a test catches them: tables by theme, which `tests/mutants.py` runs."""

from __future__ import annotations

from planted_bugs.mutant import Mutant

THEMES: dict[str, list[Mutant]] = {}
MUTANTS = [mutant for table in THEMES.values() for mutant in table]
