"""The report and maps as a reader sees them, on a screen and on a phone."""

from __future__ import annotations

from invented import everything

from gradwire.core.records import append
from gradwire.laboratory.report import document
from gradwire.laboratory.report.chart import Axis, Chart, Series, write
from gradwire.laboratory.report.sweep import pictures
from gradwire.planner import whatif


def test_a_report_fits_two_screens_and_unfolds(visit, readable, tmp_path):
    append(tmp_path / "some.jsonl", everything())
    path = tmp_path / "report.html"
    path.write_text(document.make([tmp_path / "some.jsonl"]).html, encoding="utf-8")
    page = visit(path.as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") < 2 * 844
    assert page.locator(".picture-svg").count() == 0  # nothing is drawn that is not seen
    for summary in page.locator(".chapter > summary").all():
        summary.click()
    page.wait_for_selector("#steps .picture-svg")
    page.wait_for_selector("#predictions .picture-svg")
    readable(page)


def test_the_address_opens_a_section(visit, tmp_path):
    append(tmp_path / "some.jsonl", everything())
    path = tmp_path / "report.html"
    path.write_text(document.make([tmp_path / "some.jsonl"]).html, encoding="utf-8")
    page = visit(f"{path.as_uri()}#steps")
    page.wait_for_selector("#steps .picture-svg")
    assert page.locator(".chapter[open]").count() == 1


def test_long_names_leave_room_for_the_curves(visit, readable, tmp_path):
    curves = [Series(name, (1, 2, 3), (3.0, 2.0, 1.0)) for name in ("thc(" + "bits=4, " * 12 + ")", "topk")]
    page = visit(write(Chart("t", Axis("x"), Axis("y"), curves), tmp_path / "chart.html").as_uri())
    frame, whole = (page.locator(name).bounding_box()["width"] for name in (".picture-svg .base", ".picture-svg"))
    assert frame > 0.85 * whole
    readable(page)


def test_maps_name_every_cell(visit, readable, tmp_path):
    sweep = {"bandwidth": "1gbit:400gbit:9", "gpus": "8,64,512"}
    found = whatif(sweep=sweep, codecs=["thc", "powersgd(rank=4)"], model="resnet50", batch=64)
    page = visit(write(pictures(found), tmp_path / "maps.html").as_uri())
    fastest, *others = page.locator(".picture").all()
    assert fastest.locator(".picture-svg [data-n]").count() == 27
    fastest.locator(".picture-svg [data-n]").first.hover()
    assert "powersgd(rank=4)" in fastest.locator(".tip").inner_text()
    assert all(other.locator(".legend").inner_text().strip() for other in others)
    readable(page)
