"""The page of findings, and its figures: made of whatever there is; and time to accuracy as a mixture."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from planted import EF, ending, evidence, images

from gradwire.laboratory.reproduce import testbed, throughput
from gradwire.laboratory.reproduce.catalogue import CLAIMS
from gradwire.laboratory.reproduce.claims import mixed
from gradwire.laboratory.reproduce.throughput import BERT, TOPK, TOPKC, VGG19

ROOT = Path(__file__).parents[3]


def test_time_to_accuracy_is_our_rounds_over_theirs_a_second():
    found = evidence(images((TOPKC[2], 92.0), (TOPKC[0], 70.0)))
    trained = mixed.found(found, VGG19)
    assert mixed.target(trained) == 89.5
    assert mixed.rounds(trained, mixed.FP16) == pytest.approx(29.5)
    needed = 20 + 10 * 9.5 / 12
    assert mixed.seconds(trained, TOPKC[2], VGG19) == pytest.approx(needed / 15.2)
    assert mixed.speed_up(trained, TOPKC[2], VGG19) == pytest.approx(29.5 / 8.73 / (needed / 15.2))
    assert mixed.speed_up(trained, TOPKC[0], VGG19) == 0  # never there
    assert mixed.rounds(trained, TOPK[0]) is None  # not trained
    assert mixed.found(found, BERT) is None


def test_rounds_are_as_noisy_as_seeds_are():
    assert mixed.noise(mixed.found(evidence(images()), VGG19)) == pytest.approx(0.05)  # nothing was repeated
    twice = [ending("fp16", 90.0), ending("fp16", 95.0, seed=1)]
    trained = mixed.found(evidence(twice), VGG19)
    assert mixed.target(trained) == 92.0
    alike = evidence([ending("fp16", 90.0), ending("fp16", 90.0, seed=1)])
    assert mixed.noise(mixed.found(alike, VGG19)) == 0


@pytest.fixture(scope="module")
def page():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("findings", ROOT / "docs" / "findings.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_the_page_without_records_says_what_is_open(page):
    text = page.write(evidence())
    assert (
        "- `G-baseline-resnet9`, **open**. ResNet-9 on CIFAR-10 ends at 91.67 without compression. (table II.) " in text
    )
    assert "No record yet: ResNet-9 on CIFAR-10 without compression." in text
    assert "Open: no record yet of resnet9-cifar10." in text
    assert all(f"`{id}`" in text for id in CLAIMS)
    assert "`U-A1`, **reproduced** (fitted, not counted)" in text
    assert "| VGG-19bn, table 3.1, figure 3.4 | Accordion | 92.9 | 2,945.1 | 2.29 | open | - | - |" in text
    assert "No training is recorded yet" in page._sources(ROOT, [], None)


def test_the_page_sets_ours_beside_theirs(page):
    records = [*images((TOPKC[2], 92.0)), ending("topk", 89.0, memory=EF)]
    rates = {"throughput": lambda m, s: (4.0, s.label == "FP16")}
    text = page.write(evidence(records, **rates))
    assert "| topk | error_feedback | 89.00 | 1 | -1.00 | no | -2.67 | 16 | 0.25 |" in text
    assert "| fp16 | none | 90.00 | 1 | +0.00 | yes | -1.67 | 16 | 0.25 |" in text
    assert "3 of 4 are within 0.5 points of our own baseline" in text
    row = next(line for line in text.splitlines() if line.startswith("| TopKC, b = 8 | tables 2, 3 and 5 | 8 | 15.2 |"))
    assert row.endswith("| 4.00 * | 92.00 % | +2.00 points | 28 | 1.84 |")
    assert "| FP16 | table 1 | 16 | 8.73 | 4.00 | 90.00 % | +0.00 points | 30 | 1.00 |" in text
    assert "- `G-baseline-resnet9`, **not reproduced**. " in text
    assert "Records: [some.jsonl](../results/some.jsonl)." in text
    assert "### resnet9-cifar10, modelled: h200, 16 GPUs, 10 Gbit/s" in text
    told = page._sources(ROOT, [("a.jsonl", r) for r in records[:2]], lambda path, r: f"{path.name}: {r.command}\n")
    assert told.count("- a.jsonl: gradwire bench accuracy --task resnet9-cifar10") == 1


def test_figures_have_their_labels_and_pace_and_tell_when_they_are_old(page, tmp_path):
    figures = page.figures
    assert figures.figures(evidence()) == {}
    records = images((TOPKC[2], 92.0))
    drawn = figures.figures(evidence(records))
    assert list(drawn) == ["topkc"]
    (chart,) = drawn["topkc"]
    assert chart.title == "Figure 1: resnet9-cifar10 for VGG19"
    curve = next(s for s in chart.series if s.label == "TopKC, b = 8")
    assert curve.xs[-1] == pytest.approx(30 / 15.2)  # 30 rounds of ours at their rounds a second
    path = tmp_path / "new" / "topkc.svg"
    assert figures.outdated(path, drawn["topkc"])
    figures.write(path, drawn["topkc"])
    assert not figures.outdated(path, drawn["topkc"])
    series = [dataclasses.replace(s, ys=[y and y + 1 for y in s.ys]) for s in chart.series]
    assert figures.outdated(path, [dataclasses.replace(chart, series=series)])


def test_the_model_of_their_testbed():
    sure = testbed.modelled(VGG19, mixed.FP16)
    guess = testbed.modelled(VGG19, dataclasses.replace(TOPK[0], codec="topk(ratio=0.3)"))
    assert sure[1] is True
    assert guess[1] is False  # of another ratio
    assert 5 < sure[0] < throughput.compute_seconds(VGG19) ** -1
    assert all(testbed.modelled(VGG19, s)[1] for s in throughput.SETTINGS)  # each was timed on the GPU of the profile
    assert testbed.modelled(VGG19, dataclasses.replace(TOPK[0], codec="nobody")) is None


def test_what_their_codecs_cost():
    share = testbed.their_cost(BERT, TOPK[0], rest=0.1)
    assert share / (share + 0.1) == pytest.approx(0.097)  # table 4
    half = testbed.their_cost(VGG19, throughput.POWERSGD[3], rest=0.1)
    assert half / (half + 0.1) == pytest.approx(0.474)
    assert testbed.their_cost(VGG19, throughput.POWERSGD[2], rest=0.1) == pytest.approx(half / 4)
    assert testbed.their_cost(VGG19, throughput.THC[0], rest=0.1) == pytest.approx(1 / 19.9 - 1 / 22.7)
    assert testbed.their_cost(VGG19, throughput.THC[2], rest=0.1) == 0
    assert testbed.their_cost(VGG19, TOPKC[0], rest=0.1) is None
    assert 70e9 < testbed.implied_rate(BERT) < 80e9


def test_the_score_of_a_model():
    right = {s: s.rounds_per_second[BERT] for s in testbed.timed(BERT)}
    assert testbed.score(BERT, right) == testbed.Score(19, 0.0, 0.0, 1.0, 0)
    flat = testbed.score(BERT, {s: 3.17 + 0.1 * (s is mixed.FP32) for s in right})
    assert (flat.wrong_side, flat.largest) == (16, pytest.approx(0.477, abs=1e-3))
