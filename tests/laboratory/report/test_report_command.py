"""`gradwire report`: what it writes, what it prints, what it refuses."""

from __future__ import annotations

import json
import sys

import pytest
import typer
from invented import Page, everything
from typer.main import get_command

from gradwire.cli.report import report
from gradwire.core.errors import ConfigError
from gradwire.core.records import append


@pytest.fixture
def command():
    app = typer.Typer(rich_markup_mode=None)
    app.command()(report)
    entry = get_command(app)
    return lambda *arguments: entry([str(a) for a in arguments], standalone_mode=False)


def test_it_writes_a_page_and_says_so(command, tmp_path, capsys, monkeypatch):
    append(tmp_path / "a.jsonl", everything())
    (tmp_path / "new").mkdir()
    command(tmp_path / "a.jsonl", "-o", tmp_path / "new" / "r.html", "--title", "Ours & theirs")
    told = json.loads(capsys.readouterr().out)  # piped, so JSON
    text = (tmp_path / "new" / "r.html").read_text(encoding="utf-8")
    assert told["path"] == str(tmp_path / "new" / "r.html")
    assert told["bytes"] == len(text.encode())
    assert told["records"]["step"] == 18
    assert told["sections"] == Page(text).headings
    assert "<title>Ours &amp; theirs</title>" in text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    command(tmp_path / "a.jsonl", "-o", tmp_path / "r.html")
    shown = capsys.readouterr().out
    assert "r.html, " in shown
    assert "records: 2 accuracy, 2 collective, 3 demo, 2 encode, 4 prediction, 18 step\n" in shown
    assert "sections: Verdict, Step times, Scaling, " in shown


def test_wrong_requests(command, tmp_path):
    with pytest.raises(ConfigError) as caught:
        command("a.jsonl", "-o", "r.pdf")
    assert str(caught.value) == "report: the page is HTML, so `--output` must end in .html, got 'r.pdf'"
    with pytest.raises(ConfigError, match=r"there is no file 'a\.jsonl'"):
        command("a.jsonl", "-o", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(typer.BadParameter.__mro__[1], match="records"):
        command()
