"""The mutants of `make mutants` still apply, and the script catches one. (All of them take some minutes.)"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import mutants


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: m.name)
def test_every_mutant_still_applies(mutant):
    text = (mutants.ROOT / "src" / "gradwire" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_a_planted_bug_is_caught():
    assert not mutants.survives(next(m for m in mutants.MUTANTS if m.name == "topk: ratio ignored"))
