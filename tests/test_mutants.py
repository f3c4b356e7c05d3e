"""The mutants of `make mutants` still apply, and the script catches one. (How long all take: docs/faults.md.)"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import gradwire
from gradwire import conformance
from gradwire.core.codec import codecs
from gradwire.core.records import load

sys.path.insert(0, str(Path(__file__).parent))
import mutants
from planted_bugs import MUTANTS, THEMES, Mutant

CONFORMANCE = "codecs/test_conformance.py::test_codec"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_mutant_still_applies(mutant):
    text = (mutants.ROOT / "src" / "gradwire" / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert mutant.old != mutant.new
    ast.parse(text.replace(mutant.old, mutant.new))


def test_no_mutant_is_there_twice():
    assert [name for name, times in Counter(m.name for m in MUTANTS).items() if times > 1] == []
    assert all(THEMES.values())
    assert [what for what, times in Counter((m.file, m.old, m.new) for m in MUTANTS).items() if times > 1] == []


@functools.cache
def functions(file):
    found = ast.walk(ast.parse((mutants.ROOT / "tests" / file).read_text()))
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


@functools.cache
def cases():
    """Of the conformance suite, for codecs with their defaults: all others are sweeps."""
    each = [(codec, case) for codec in map(gradwire.codec, codecs.names()) for case in conformance.cases(codec)]
    return {f"{CONFORMANCE}[{codec.spec}-{case.label}]" for codec, case in each}


@pytest.mark.parametrize("test", sorted({test for m in MUTANTS for test in m.named_tests}))
def test_the_tests_that_mutants_name_are_there(test):
    file, _, function = test.partition("::")
    assert (mutants.ROOT / "tests" / file).exists()
    assert "/" not in file or file.split("/")[0] not in ("gpu", "engines", "frameworks")
    assert not function or function.partition("[")[0] in functions(file)
    assert not test.startswith(f"{CONFORMANCE}[") or test in cases()


def test_a_planted_bug_is_caught_and_told_by_whom():
    """In a process of its own: the script loads what all mutants share, and nothing of gradwire."""
    command = [sys.executable, str(mutants.ROOT / "tests" / "mutants.py"), "topk: ratio ignored", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "topk: ratio ignored  <- tests/codecs/test_examples.py::test_topk_by_hand" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 of 1 mutants caught in ")


def outcomes(found):
    """In the place of `mutants.outcomes`: what becomes of mutants is what `found` says; unchanged sources survive."""
    return lambda tried, jobs: (mutants.Outcome(m, *found.get(m.name, (None, 1.0, ""))) for m in tried)


FIRST, SECOND = (m.name for m in THEMES["units"][:2])


def test_a_survivor_is_told_and_recorded(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(mutants, "THEMES", {"units": THEMES["units"][:2]})
    monkeypatch.setattr(mutants, "outcomes", outcomes({FIRST: ("tests/test_engine.py::test_one", 2.0, "")}))
    assert mutants.main(["--jobs", "3", "--record", str(tmp_path / "m.jsonl")]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"caught       2 s  {FIRST}  <- tests/test_engine.py::test_one"
    assert told[1] == f"SURVIVED     1 s  {SECOND}"
    assert told[2].startswith("1 of 2 mutants caught in ")
    (record,) = load(tmp_path / "m.jsonl")
    assert (record.kind, record.what) == ("mutants", {"theme": "units", "jobs": 3})
    assert record.command == "python tests/mutants.py --jobs 3"
    assert (record.samples, record.outcome["mutants"]) == ((2.0, 1.0), 2)
    assert record.outcome["caught_by"] == {FIRST: "tests/test_engine.py::test_one"}
    assert record.outcome["survivors"] == [SECOND]


def test_a_theme_is_recorded_as_soon_as_it_is_known(monkeypatch, tmp_path):
    """So that a campaign that is cut short leaves what it has found."""
    path = tmp_path / "m.jsonl"
    monkeypatch.setattr(mutants, "THEMES", {"units": THEMES["units"][:2], "state": THEMES["state"][:2]})

    def cut_short(tried, jobs):
        found = {m.name: mutants.Outcome(m, "tests/test_engine.py::test_one", 1.0) for m in tried}
        order = [*THEMES["units"][:1], *THEMES["state"][:1], *THEMES["units"][1:2]]
        yield from (found[m.name] for m in order)
        raise KeyboardInterrupt

    monkeypatch.setattr(mutants, "outcomes", cut_short)
    with pytest.raises(KeyboardInterrupt):
        mutants.main(["--jobs", "1", "--record", str(path)])
    (record,) = load(path)
    assert (record.what["theme"], len(record.outcome["caught_by"])) == ("units", 2)


def test_where_unchanged_sources_do_not_pass_nothing_counts(monkeypatch, capsys, tmp_path):
    red = {"nothing changed 0": ("tests/test_engine.py::test_one", 1.0, "")}
    monkeypatch.setattr(mutants, "outcomes", outcomes(red))
    assert mutants.main([FIRST, "--record", str(tmp_path / "m.jsonl")]) == 2
    assert capsys.readouterr().out == "the suite is red: tests/test_engine.py::test_one\n"
    assert not (tmp_path / "m.jsonl").exists()


def test_spaces_in_brackets_belong_to_a_test():
    assert Mutant("", "", "", "", "a.py b.py::test[x, y]").named_tests == ["a.py", "b.py::test[x, y]"]
