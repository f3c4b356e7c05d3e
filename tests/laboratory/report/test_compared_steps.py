"""Who is ahead: within one run, on one machine, counted as the pages in docs/ count."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from invented import run, step

from gradwire.core.baselines import HALF, PLAIN
from gradwire.laboratory.report import verdict
from gradwire.laboratory.report.load import of_kind, read
from gradwire.laboratory.report.steps import count, label, main_sweep, runs

ROOT = Path(__file__).parents[3]
LATER = "2026-01-02T04:00:00+00:00"


def test_ratios_are_formed_within_a_run():
    first, second = runs([*run({"signsgd": 0.02}), *run({"signsgd": 0.05}, time=LATER)])
    assert first.against(first.ours[0], HALF) == pytest.approx(0.06 / 0.02)
    assert first.against_ddp(first.ours[0]) == pytest.approx(3)  # FP16 is the faster one
    assert second.against(second.ours[0], PLAIN) == pytest.approx(0.1 / 0.05)
    alone = runs([step("signsgd", 0.02, mode="overlap")])[0]
    assert (alone.against(alone.ours[0]), alone.best) == (None, None)


def test_machines_are_kept_apart():
    found = runs([*run({"signsgd": 0.02}), *run({"signsgd": 0.02}, cpu="another")])
    assert [len(r.records) for r in found] == [5, 5]
    assert {r.set_up.machine for r in found} == {"a processor, 2 cores", "another, 2 cores"}


def test_other_modes_strategies_batches_and_older_records_are_not_counted():
    both = [
        *run({"signsgd": 0.01}, mode="after_backward", time=LATER),
        step("signsgd", 0.01, mode="overlap", time=LATER),
    ]
    other = step("signsgd", 0.01, mode="overlap", strategy="all_gather")
    records = [*run({"signsgd": 0.02, "topk": 0.09}), other, *both, *run({"signsgd": 0.01}, batch=1, rate=1e8)]
    counted = main_sweep(runs(records))
    assert [[label(r) for r in found.ours] for found in counted] == [["signsgd", "topk"]]
    again = run({"signsgd": 0.03}, time="2026-01-02T05:00:00+00:00")
    older, newer = main_sweep(runs([*records, *again]))
    assert [label(r) for r in older.ours] == ["topk"]
    assert [r.quantiles.p50 for r in newer.ours] == [0.03]
    assert main_sweep(runs(both)) != []  # where there is nothing else


def test_labels_tell_what_is_unusual():
    assert label(step("signsgd", 1.0, mode="overlap")) == "signsgd"
    assert (
        label(step("signsgd", 1.0, mode="after_backward", strategy="all_gather"))
        == "signsgd, all_gather, after_backward"
    )


def test_wins_are_counted():
    wins = count(
        runs([*run({"signsgd": 0.02, "topk": 0.058, "powersgd(rank=4)": 0.2}), *run({"signsgd": 0.5}, rate=2e9)])
    )
    assert (wins.set_ups, wins.codecs, wins.settings) == (2, 3, 4)
    assert (wins.over_half, wins.over_plain) == (1, 2)  # 0.06 / 0.058 is too little
    assert (wins.set_ups_over_half, wins.set_ups_over_both) == (1, 1)
    assert (wins.power, wins.power_over_half, wins.power_over_powersgd, wins.power_over_all) == (2, 2, 1, 1)


def test_the_verdict_on_our_records_is_that_of_the_docs():
    sources, _ = read(sorted((ROOT / "results").glob("step_*.jsonl")))
    *_, words = verdict.section(sources).blocks
    told = " ".join(line for block in words.blocks for line in block.lines)
    network = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    counts = [(int(a), int(b)) for a, b in re.findall(r"\*\*(\d+) of\s(\d+)\*\* settings", told)]
    assert len(counts) == len({r.environment["cpu"] for r in of_kind(sources, "step")})
    in_docs = defaultdict(lambda: (0, 0))  # of each machine, whose files the report counts together
    for section in re.findall(r"## Training steps, (.*?)(?=\n## |$)", network, re.DOTALL):
        machine = section.partition("\n")[0].removeprefix("3 sessions, ").partition(",")[0]
        won, settings = re.search(r"\*\*(\d+) of (\d+)\*\* beat FP16 DDP", section).groups()
        in_docs[machine] = (in_docs[machine][0] + int(won), in_docs[machine][1] + int(settings))
    assert sorted(counts) == sorted(in_docs.values())
