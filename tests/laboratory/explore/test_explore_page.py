"""`gradwire explore`: what it refuses, and the page itself in a browser."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from gradwire.cli import main
from gradwire.laboratory.explore import server

MISSING = "the page is NiceGUI's, which is not installed: pip install nicegui"
START = ("explore", "--model", "resnet18-cifar10", "--port", "0", "--no-browser")


@pytest.fixture(scope="module")
def address():
    """Of a page that is served until these tests end; Ctrl-C is a good end."""
    pytest.importorskip("nicegui", reason=MISSING)
    command = [sys.executable, "-m", "gradwire", *START]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}  # by which NiceGUI acts
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own) as served:
        told = served.stdout.readline()
        try:
            yield re.fullmatch(r"gradwire explore: (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)\n", told)[1]
        finally:
            served.send_signal(signal.SIGINT)
            _, problems = served.communicate(timeout=60)
    assert (served.returncode, problems) == (0, "")


def wait_for(address):
    """Until it answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        try:
            return opener.open(address, timeout=30).read().decode()
        except urllib.error.URLError:  # nobody listens yet
            time.sleep(0.1)
    raise AssertionError("nobody answers")


def test_the_page_answers_when_sliders_move(address, visit, readable, tmp_path):
    wait_for(address)
    page = visit(address)
    page.wait_for_selector("text=The frame: where you are")
    verdict = page.locator(".answer .border-l-4")
    first = verdict.inner_text()
    assert "resnet18-cifar10" in page.locator(".answer").inner_text()
    assert page.locator(".picture-svg").count() == 2
    assert page.locator(".here").count() == 1
    readable(page)
    slider = page.get_by_role("slider", name="bandwidth of a node").locator("[tabindex]").first
    slider.focus()
    for _ in range(12):
        slider.press("ArrowLeft")
    page.wait_for_selector("text=bandwidth of a node: 100 Mbit/s")
    page.wait_for_function("(first) => document.querySelector('.answer .border-l-4').innerText !== first", arg=first)
    assert verdict.inner_text().startswith("Worth it: ")
    readable(page)
    assert len(page.screenshot(path=tmp_path / "explore.png", full_page=True)) > 20_000


def test_it_is_served_to_this_machine_alone(address):
    assert "gradwire explore" in wait_for(address)
    port = int(address.rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):  # also this machine, but another of its addresses
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_without_the_library_the_message_has_the_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nicegui", None)
    assert main(["explore"]) == 1
    assert capsys.readouterr().err == (
        "gradwire: explore: the page needs nicegui, which is not installed; run: pip install nicegui, or "
        "ask on the command line: gradwire advise, gradwire whatif\n"
    )


def test_a_profile_of_ones_own_shows_its_own_model(tmp_path, monkeypatch):
    from gradwire.planner.profile import Profile
    from gradwire.planner.text import dump

    profile = Profile.load("h200")
    mine = dataclasses.replace(profile, name="mine", models={"my_nets:small": profile.models["resnet50"]})
    (tmp_path / "mine.toml").write_text(dump(mine))
    shown = []
    monkeypatch.setattr(server, "serve", lambda start, **options: shown.append(start.model))
    for options in ([], ["--hardware", str(tmp_path / "mine.toml")], ["--model", "bert-base"]):
        assert main(["explore", *options]) == 0
    assert shown == ["resnet50", "my_nets:small", "bert-base"]


def test_a_taken_port_and_an_unknown_model(capsys, monkeypatch):
    pytest.importorskip("nicegui", reason=MISSING)
    with socket.socket() as taken:
        taken.bind((server.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["explore", "--port", str(port), "--no-browser"]) == 2
    assert capsys.readouterr().err == (
        f"gradwire: explore: port {port} cannot be used (Address already in use); give another with --port, or --port "
        "0 for any that is free\n"
    )
    assert main(["explore", "--model", "resnet1", "--no-browser"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("gradwire: explore: profile h200 has no times of 'resnet1', only of bert-base, bert-large, ")
    assert told.endswith("; choose one of these, or measure yours: gradwire calibrate --model resnet1\n")
