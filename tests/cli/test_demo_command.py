"""`gradwire demo`: what is refused before any process starts, and the page. The run is in test_demo.py."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.cli.demo import page
from gradwire.laboratory.bench.outcome import Outcome


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--codec", "powersg"], "gradwire: no codec named 'powersg'; did you mean powersgd?"),
        (["--workers", "1"], "gradwire: demo: `workers` must be from 2, else nothing is sent, to 64, got 1"),
        (
            ["--loopback", "--rate", "1gbit"],
            "gradwire: demo: --rate is of an emulated network, and --loopback asks for none; leave one out",
        ),
        (
            ["--rate", "1"],
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '1'",
        ),
        (["--record", "."], "gradwire: demo: `--record` must name a file that can be written, got '.'; choose another"),
    ],
)
def test_bad_requests_are_refused_at_once(capsys, arguments, message):
    assert main(["demo", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message + "\n")


def test_the_page_shows_every_configuration_and_marks_what_is_computed():
    labels = ("fp32 DDP", "fp16 DDP", "topk(ratio=0.01)")
    outcomes = [
        Outcome(
            label=label,
            samples={"loopback": (0.05 * (i + 1),) * 3},
            sent_bytes=8e6 / 4**i,
            loss=0.5,
            accuracy=0.9,
            parts=None if i == 0 else {"encode": 0.01, "communicate": 0.02, "decode": 0.005},
        )
        for i, label in enumerate(labels)
    ]
    screen = Console(file=io.StringIO(), width=120)
    screen.print(page(outcomes))
    text = screen.file.getvalue()
    rows = {line.split("  ")[1]: line.split() for line in text.splitlines() if line[2:].startswith(labels)}
    assert rows["fp32 DDP"][2:] == ["50.0", "(50-50)", "8", "MB", "0.500", "90.0%", "-", "64", "ms", "-", "-"]
    time, sent, quality = ["100.0", "(100-100)"], ["2", "MB"], ["0.500", "90.0%"]
    assert rows["fp16 DDP"][2:] == [*time, *sent, *quality, "10/20/5", "16", "ms", "960", "Mbit/s", "-"]
    assert rows["topk(ratio=0.01)"][-4:] == ["600", "Mbit/s", "240", "Mbit/s"]
    assert "*: computed from bytes and measured steps, not measured" in text
    assert "Computed, not measured:" in text


def test_the_page_shows_each_link_beside_fp16():
    times = {"fp32 DDP": (0.3, 0.1), "fp16 DDP": (0.2, 0.08), "topk": (0.1, 0.1)}
    outcomes = [
        Outcome(
            label=label,
            samples={"200 Mbit/s": (slow,) * 3, "1 Gbit/s": (fast,) * 3},
            sent_bytes=1e6,
            loss=0.5,
            accuracy=0.9,
            parts=None,
        )
        for label, (slow, fast) in times.items()
    ]
    screen = Console(file=io.StringIO(), width=120)
    screen.print(page(outcomes))
    text = screen.file.getvalue()
    row = next(line for line in text.splitlines() if line[2:].startswith("topk")).split()
    assert row == ["topk", "100.0", "(100-100)", "2.00", "100.0", "(100-100)", "0.80", "1", "MB", "0.500", "90.0%", "-"]
    assert "at 200 Mbit/s" in text
    assert "*" not in text
    assert "more columns" not in text
    narrow = Console(file=io.StringIO(), width=80)
    narrow.print(page(outcomes))
    text = narrow.file.getvalue()
    row = next(line for line in text.splitlines() if line[2:].startswith("topk")).split()
    assert row[:7] == ["topk", "100.0", "(100-100)", "2.00", "100.0", "(100-100)", "0.80"]  # whole, or not there
    assert "…" not in text
    assert "more columns on a wider terminal" in text


def test_without_privileges_it_goes_on_over_loopback_and_says_why(capsys, monkeypatch):
    monkeypatch.setattr("gradwire.laboratory.hosts.namespace.missing", lambda: "lab: not here")
    assert main(["demo", "--workers", "2", "--steps", "10", "--codec", "signsgd"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "gradwire: lab: not here\nGoing on over loopback.\n"
    assert '"rates": []' in captured.out
