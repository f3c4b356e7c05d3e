"""What a planted bug is."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which must occur once in `file`, by `new`; one of `tests` must then fail.

    Args:
        name: what is wrong then. "trap 6: ..." takes out what docs/traps.md says is done about that trap.
        file: in src/gradwire.
        old: a piece of its text.
        new: what stands there instead.
        tests: files in tests/, or tests in them, with spaces between: few and quick ones, all of the ordinary suite.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def named_tests(self) -> list[str]:
        """`tests`, one by one; spaces in brackets belong to a test's parameters.

        >>> Mutant("", "", "", "", "a.py b.py::test[x, y]").named_tests
        ['a.py', 'b.py::test[x, y]']
        """
        return re.findall(r"(?:\[[^\]]*\]|\S)+", self.tests)

    @property
    def trap(self) -> int | None:
        """The number of the trap in docs/traps.md whose handling this takes out."""
        found = re.match(r"trap (\d+): ", self.name)
        return int(found[1]) if found else None
