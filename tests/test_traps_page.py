"""docs/traps.md: every trap has a test that is there, and a planted bug where there is something to take out."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from planted_bugs import MUTANTS
from planted_bugs.traps import NOT_PLANTED

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows():
    for line in (ROOT / "docs" / "traps.md").read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@functools.cache
def functions(file):
    found = ast.walk(ast.parse((ROOT / file).read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


def test_the_traps_are_numbered_and_none_is_missing():
    assert [int(row[0]) for row in rows()] == list(range(1, 51))


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row[0])
def test_each_trap_has_tests_that_exist(row):
    _, trap, seen, tests = row
    assert trap
    assert seen
    named = NAMED.findall(tests)
    assert named
    assert ", ".join(f"`{file}::{name}`" for file, name in named) == tests
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name in functions(file), f"{file} has no {name}"


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.trap], ids=lambda m: m.name)
def test_a_planted_bug_is_caught_by_a_test_that_its_row_names(mutant):
    (row,) = [row for row in rows() if int(row[0]) == mutant.trap]
    named = {f"{file}::{name}" for file, name in NAMED.findall(row[-1])}
    for test in mutant.named_tests:
        wanted = f"tests/{test.partition('[')[0]}"  # a test, or a file of tests
        if wanted in named or any(name.startswith(f"{wanted}::") for name in named):
            return
    pytest.fail(f"none of {mutant.named_tests} stands in row {mutant.trap} of docs/traps.md")


def test_what_is_done_about_each_trap_can_be_taken_out():
    """By `make mutants`; or there is nothing to take out, or nobody could see it without a GPU, and it says which."""
    planted = {mutant.trap for mutant in MUTANTS} - {None}
    assert planted | NOT_PLANTED.keys() == set(range(1, 51))
    assert not planted & NOT_PLANTED.keys()
    assert all(why.endswith(".") for why in NOT_PLANTED.values())
