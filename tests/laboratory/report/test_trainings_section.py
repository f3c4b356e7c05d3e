"""A user's own trainings in a report: a line each, their steps, and nothing compared that was not measured together."""

from __future__ import annotations

from invented import NASTY, Page, training

from gradwire.core.records import append
from gradwire.laboratory.report import document
from gradwire.laboratory.report.sections.trainings import section, sentences

LATER = "2026-02-02T03:04:05+00:00"


def test_a_training_is_a_line_and_its_steps_a_chart():
    lines = [
        training(100, 0.05),
        training(200, 0.03),
        training(50, 0.2, codec="none", exposed=None, rate=None, time=LATER),
    ]
    found = section(lines)
    intro, table, choice = found.blocks
    assert len(table.rows) == 2
    assert table.rows[0] == [
        "net", "topk", "4", "10 Gbit/s", "6", "39.0 (30.0-50.0)", "1 MB", "40", "4.0", "4.0"
    ]  # fmt: skip
    assert table.rows[1][3] == "not told"
    assert table.rows[1][-2:] == ["-", "-"]
    (item,) = choice.items
    step, hidden, exposed = item.blocks[0].series
    assert list(step.xs) == [100.0, 200.0]
    assert list(step.ys) == [0.05, 0.03]
    assert (hidden.label, exposed.label) == ("hidden", "exposed")
    assert "Two trainings are two runs" in intro.lines[0]


def test_the_verdict_says_what_is_known_and_what_is_not():
    (told,) = sentences([training(100, 0.05)])
    assert told == (
        "Your training of net, 4 ranks, topk sends 1 MB a step, 40 times less than plain DDP would; a step takes 50 "
        "ms, of which it waits 4 ms for the exchange. Whether that pays, only a run without the codec could tell."
    )


def test_names_of_users_are_only_text(tmp_path):
    append(
        tmp_path / "run.jsonl", [training(1, 0.1, model=NASTY, codec=NASTY), training(2, 0.1, model=NASTY, codec=NASTY)]
    )
    page = Page(document.make([tmp_path / "run.jsonl"]).html)
    assert "Your trainings" in page.headings
    assert not any(tag == "img" for tag, _ in page.tags)


def test_without_trainings_there_is_no_section():
    assert section([]) is None
