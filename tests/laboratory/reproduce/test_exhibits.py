"""Tables and figures: each is whole, and the numbers that the prose gives stand beside ours."""

from __future__ import annotations

import pytest
from stand_in import record, study

from gradwire.core.errors import UnknownName
from gradwire.laboratory.reproduce import contradictions
from gradwire.laboratory.reproduce.catalogue import EXHIBITS, build
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.exhibit import COMPARISON, answer

IDS = [*(f"table{n}" for n in (1, 2, 3)), *(f"fig{n}" for n in (*range(2, 13), *range(14, 22)))]


def row(exhibit, what):
    [found] = [dict(zip(exhibit.columns, r, strict=True)) for r in exhibit.rows if r[0] == what]
    return found


def test_all_that_the_text_allows_is_there():
    assert set(EXHIBITS) == {*IDS, "contradictions", "grid", "safe", "sensitivity"}


@pytest.mark.parametrize("id", EXHIBITS)
def test_every_exhibit_is_whole(id):
    exhibit = build(id, Evidence(study=study()))
    assert exhibit.id == id
    assert exhibit.rows
    assert all(len(r) == len(exhibit.columns) for r in exhibit.rows)
    assert set(exhibit.brief) <= set(exhibit.columns)
    assert len(set(exhibit.columns)) == len(exhibit.columns)
    assert exhibit.notes
    if id in IDS:
        assert exhibit.columns == COMPARISON
    for picture in exhibit.pictures:
        assert len({c.label for c in picture.curves}) == len(picture.curves)
        for curve in picture.curves:
            assert len(curve.xs) == len(curve.ys) > 1
            assert any(y is not None for y in curve.ys)


def test_an_unknown_id_names_near_ones():
    with pytest.raises(UnknownName, match=r"reproduce: no paper, claim, table or figure 'fig22'; did you mean fig2"):
        build("fig22", Evidence(study=study()))


@pytest.mark.parametrize(
    "id, what, paper, formula",
    [
        ("fig2", "ResNet-50, saved, %", 46, 39.3),
        ("fig3", "ResNet-101: crossover, Gbit/s", "8.2", 8.23),
        ("fig6", "wins of 45", 4, 9),
        ("fig6", "ResNet-101, batch 64, 96 GPUs: powersgd(rank=16), ms", 470, 439),
        ("fig7", "wins of 20", 2, 2),
        ("fig8", "ResNet-101, batch 64, 96 GPUs: signsgd, ms", 1042, 1042),
        ("fig9", "ResNet-101, batch 32, 96 GPUs: saved, %", 25.7, 26.2),
        ("fig10", "BERT base, batch 12, 96 GPUs: ms", "about 200", 200),
        ("fig11", "ResNet-101, batch 64, 96 GPUs: syncSGD, ms", 262, 262),
        ("fig12", "ResNet-101, batch 16, 64 GPUs: times smaller, within 10 %", "about 4", 3.87),
        ("fig17", "ResNet-101, batch 64, 96 GPUs: signsgd, ms", 1042, 1042),
        ("fig18", "ResNet-50, batch 16, 64 GPUs: times smaller, within 10 %", "below 4", 8.13),
        ("fig19", "BERT base: crossover, Gbit/s", "about 15", 18.8),
        ("fig20", "ResNet-50, compute and encoding x3.5: PowerSGD's speed-up", 1.75, 3.07),
        ("fig20", "ResNet-50, compute alone x3.5", None, 1.86),
        ("fig20", "ResNet-50: compute at which the speed-up is 1.75", 3.5, 1.96),
        ("fig21", "ResNet-50, l = 1, k = 1: ms", None, 169.1),
        ("table1", "tree, ms", "2 alpha log p + 2 beta n log p", 931.2),
        ("table3", "PowerSGD rank 4, ratio", 72, 66.5),
    ],
)
def test_paper_beside_formula(id, what, paper, formula):
    found = row(build(id, Evidence(study=study())), what)
    assert found["paper"] == paper
    assert found["formula"] == pytest.approx(formula, rel=5e-3)


def test_figure_4_has_the_papers_order():
    times = [(r[2], r[3]) for r in build("fig4", Evidence(study=study())).rows]
    assert times == sorted(times)


def test_overlapped_compression_has_no_formula():
    exhibit = build("fig14", Evidence(study=study()))
    assert row(exhibit, "wins over syncSGD when overlapped, of 45")["paper"] == 0
    overlapped = [r for r in exhibit.rows if r[0].endswith("overlapped, ms")]
    assert len(overlapped) == 45
    assert all(r[2] is None and r[3] > 0 for r in overlapped)


def test_records_stand_in_the_last_column():
    encode = record("encode", {"codec": "topk", "device": "cuda", "elements": 25_557_032}, 0.007, {})
    assert row(build("table2", Evidence(study=study([encode]))), "TopK 1%, ms")["measured"] == pytest.approx(7)
    what = {"configuration": "topk", "model": "shapes", "batch": 4, "hosts": 2, "bits_per_second": 2e8}
    steps = [record("step", what | {"mode": m}, t, {}) for m, t in (("overlap", 0.3), ("after_backward", 0.2))]
    found = row(build("fig5", Evidence(study=study(steps))), "shapes, 2 hosts, 200 Mbit/s: topk overlapped / after")
    assert found["measured"] == pytest.approx(1.5)


def test_contradictions_carry_their_numbers():
    numbers = {c.name: c.numbers(study()) for c in contradictions.LIST}
    assert numbers["ATOMO"] == "Table 2: 1586 / 45 = 35 times."
    assert numbers["size of BERT"].startswith("109,482,240 parameters are 437.9 MB or 417.6 MiB")
    assert numbers["50 ms"].endswith("SignSGD 16, QSGD 2 bit 39, PowerSGD rank 4 45.")
    assert "add 20 wins of 30" in numbers["six of 200"]
    assert "934 ms" in numbers["alpha's size"]
    assert "21.6 us" in numbers["alpha's size"]
    assert "takes 280 ms" in numbers["measured and simulated ResNet-101"]
    assert "needs 327 ms" in numbers["measured and simulated ResNet-101"]
    assert "9 at 0 us" in numbers["BERT by GPUs"]
    assert "3.07 times" in numbers["faster compute"]
    assert "1.86 times" in numbers["faster compute"]
    assert numbers["ResNet-18 on CIFAR-100"] == "+0.7, +1.3, +0.5 points between text and table, of one training each."
    assert "VGG19 12.3 % lower, and 13.2 by the logarithm" in numbers["the rotation's cost"]
    assert numbers["bits of PowerSGD"].endswith("47 times fewer than FP16, 94 than FP32.")


def test_only_what_cannot_be_known_is_left_out():
    def unknown():
        raise UnknownName("nobody knows")

    assert answer(unknown) is None
    with pytest.raises(ZeroDivisionError):
        answer(lambda: 1 / 0)
