"""The page: closed in itself, well-formed, escaped, readable without its script."""

from __future__ import annotations

import json
import re

from invented import NASTY, Page

from gradwire.laboratory.report import layout, page
from gradwire.laboratory.report.chart import Axis, Bars, Chart, Part, Series
from gradwire.laboratory.report.page import Choice, Fold, Item, Section, Table, Text


def a_page():
    chart = Chart(NASTY, Axis(NASTY), Axis("y", unit="seconds"), [Series(NASTY, (1, 2), (0.1, 0.2), note=NASTY)])
    bars = Bars(NASTY, Axis("y"), [NASTY], [Part(NASTY, [1.0])], ends=[NASTY], notes=[NASTY], subtitle=NASTY)
    choice = Choice([NASTY, "b"], [Item([NASTY, "1"], [Table([NASTY], [[NASTY]])]), Item(["x", "2"], [bars])])
    blocks = [Text([NASTY]), Text([NASTY], points=True), Table([NASTY, "n"], [[NASTY, "1"]], NASTY), chart, choice]
    sections = [Section("first", NASTY, blocks, open=True), Section("second", NASTY, [Fold(NASTY, blocks[:1])], NASTY)]
    return page.render(NASTY, sections, subtitle=NASTY)


def test_text_stays_text():
    text = a_page()
    found = Page(text)  # every tag is closed by its own
    assert "onerror" not in {name for _, values in found.tags for name in values}
    assert "img" not in {tag for tag, _ in found.tags}
    assert len(found.scripts) == 2  # the page's own
    assert found.text.count("</script><img src=x onerror=alert(1)>") >= 10


def test_embedded_json_is_what_went_in():
    shown = Page(a_page()).pictures
    assert [p["kind"] for p in shown] == ["chart", "bars"]
    assert shown[0]["title"] == shown[0]["series"][0]["label"] == shown[0]["series"][0]["note"] == NASTY
    assert shown[0]["series"][0]["text"] == ["100 ms", "200 ms"]
    value = {"a": "</script>\u2028", "b": ["&", "<!--"]}
    assert json.loads(page.embedded(value)) == value
    assert not set(page.embedded(value)) & set("<>&'\u2028")


def test_choices_name_their_items():
    found = Page(a_page())
    assert json.loads(found.attributes("data-keys")[0]) == [NASTY, "b"]
    assert [json.loads(v) for v in found.attributes("data-values")] == [[NASTY, "1"], ["x", "2"]]


def test_bold_and_code_are_understood_in_text_and_nothing_else():
    assert page.inline("**a** `b` <i>") == "<strong>a</strong> <code>b</code> &lt;i&gt;"


def test_nothing_is_loaded_from_anywhere():
    text = a_page()
    found = Page(text)
    assert found.attributes("src") + found.attributes("href") == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "Content-Security-Policy" in text
    assert page.POLICY.startswith("default-src 'none'")


def test_the_script_writes_text_as_text():
    script = page.asset("page.js")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(|XMLHttpRequest", script
    )
    assert "</" not in script  # it stands inside an element
    assert len(script) < 30_000


def test_without_the_script_the_numbers_are_there():
    chart = Chart("t", Axis("rate", unit="rate"), Axis("y", unit="seconds"), [Series("s", (1e9, 2e9), (0.1, None))])
    found = Page(page.of_pictures("t", [chart]))
    rows = found.text.partition("Numbers")[2]
    assert re.sub(r"\s+", " ", rows).strip() == "rates 1 Gbit/s100 ms 2 Gbit/s-"
    assert ("details", {"open": None}) in found.tags


def test_what_is_not_said_first_is_folded():
    opened, folded = (Section("s", "S", [Text(["inside"])], "what it is", open=o) for o in (True, False))
    assert "<details" not in page.render("t", [opened])
    text = page.render("t", [folded]).partition("<section")[2]
    heading = '<summary><h2>S</h2> <span class="gist">what it is</span></summary>'
    assert f'<details class="fold chapter">{heading}\n<p>inside</p>\n</details>' in text
    chart = Chart("t", Axis("x"), Axis("y"), [Series("s", (1,), (1.0,))])
    assert Page(page.render("t", [Section("s", "S", [Fold("more", [chart])])])).pictures[0]["series"][0]["hue"] == 0


def test_a_caption_and_words_of_a_table():
    text = page.render("t", [Section("s", "S", [Table(["a", "b"], [["x", "1"]], "what it is", words=2)])])
    assert '<table class="w2"><caption>what it is</caption>' in text
    assert '<th scope="row">x</th><td>1</td>' in text
    assert ".w6" in page.asset("page.css")


def test_every_colour_has_a_dark_one():
    assert len(layout.COLOURS) == len(layout.DARK_COLOURS)
    assert len(layout.PART_COLOURS) == len(layout.DARK_PARTS)
    text = page.of_pictures("t", [])
    assert f"--c{len(layout.COLOURS) - 1}:{layout.COLOURS[-1]};" in text
    assert f"--p{len(layout.DARK_PARTS) - 1}:{layout.DARK_PARTS[-1]};" in text
