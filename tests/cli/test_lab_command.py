"""`gradwire lab` on the command line. How a lab behaves and ends is in tests/lab."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.cli.lab import line, table
from gradwire.laboratory.hosts import Network, Verified
from gradwire.laboratory.hosts.namespace import become_able, missing


@pytest.fixture
def lab():
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


def fails(capsys, arguments, code, message):
    assert main(["lab", *arguments]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message + "\n")


@pytest.mark.usefixtures("lab")
def test_a_command_keeps_its_own_options_and_gives_the_exit_code(capfd):
    command = ["sh", "-c", 'echo "$RANK of $WORLD_SIZE: $@"; exit 7', "x", "--rate", "fast", "--", "-h"]
    for arguments in (["--", *command], command):
        assert main(["lab", "--hosts", "2", "--gpus-per-host", "2", "--no-verify", *arguments]) == 7
        captured = capfd.readouterr()
        assert " of 4: --rate fast -- -h\n" in captured.out
        assert captured.err.endswith(" of 4 ended with exit code 7; the others are stopped\n")


@pytest.mark.usefixtures("lab")
def test_the_network_is_measured_before_the_command_runs(capfd):
    arguments = ["--hosts", "2", "--rate", "50mbit", "--link", "1=20mbit", "--fault", "slow:0@0", "--timeout", "30"]
    assert main(["lab", *arguments, "--", "true"]) == 0
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith("gradwire lab: 2 hosts at 50 Mbit/s; measured ")
    assert "of payload" in first
    assert first.endswith(" us")
    assert second == "gradwire lab: host 0's link is slowed to 5 Mbit/s"


@pytest.mark.usefixtures("lab")
def test_without_a_command_the_measured_network_is_printed(capsys):
    assert main(["lab", "--hosts", "2", "--rate", "20mbit"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["hosts"], answer["bits_per_second"], answer["links"]) == (2, 20e6, {})
    assert all(0 < rate < 20e6 for rate in answer["measured"]["payload_bits_per_second"])
    assert answer["measured"]["flows"] == [[0, 1], [1, 0]]


def test_what_was_measured_as_a_table_as_a_line_and_as_json():
    measured = Verified(((0, 1), (1, 0)), (1e8, 1e8), (95.6e6, 95e6), (13e-6, 21e-6), (94e6, 93e6))
    screen = Console(file=io.StringIO(), width=120)
    screen.print(table(measured))
    text = " ".join(screen.file.getvalue().split())
    assert "1 0 100 Mbit/s 95 Mbit/s 21 us" in text
    assert "all at once: 94 Mbit/s, 93 Mbit/s" in text
    network = Network(2, "100mbit", {"1": "50mbit"})
    assert line(network, measured, False) == (
        "gradwire lab: 2 hosts at 100 Mbit/s; measured 95 Mbit/s to 95.6 Mbit/s of payload, 93 Mbit/s or more with all "
        "at once, latency 21 us"
    )
    as_json = json.loads(line(network, measured, True))
    assert as_json["links"] == {"1": 50e6}
    assert as_json["measured"] == json.loads(json.dumps(measured.describe()))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--hosts", "1"], "gradwire: lab: `hosts` must be a whole number from 2 to 64, got 1"),
        (["--link", "3"], "gradwire: lab: a link is written NAME=RATE, as in 3=100mbit or 0-1=10gbit; got '3'"),
        (
            ["--rate", "10"],
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '10'",
        ),
        (
            ["--fault", "cut:1@2"],
            "gradwire: lab: `--fault` needs a command to run; without one the network is measured and printed",
        ),
        (
            ["--no-verify"],
            "gradwire: lab: `--no-verify` needs a command to run; without one the network is measured and printed",
        ),
        (["--fault", "cut:4@2", "true"], "gradwire: lab: `cut` must be a whole number from 0 to 3, got 4"),
        (["--timeout", "0", "true"], "gradwire: lab: `timeout` must be a number of seconds above 0, got 0.0"),
        (["--clean", "true"], "gradwire: lab: `--clean` ends labs and runs no command; give one or the other"),
    ],
)
def test_bad_requests_are_refused_at_once(capsys, arguments, message):
    fails(capsys, arguments, 2, message)


def test_without_iproute_it_says_what_to_install():
    environment = {**os.environ, "PATH": "/nowhere"}
    command = [sys.executable, "-m", "gradwire", "lab", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    message = "ip, tc, unshare not found; install the package iproute2 and util-linux of your distribution"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"gradwire: lab: {message}\n")


def test_where_namespaces_are_not_permitted_it_gives_the_choices(capsys, monkeypatch, tmp_path):
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: Operation not permitted' >&2; exit 1\n")
    for name in ("unshare", "ip", "tc"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    message = (
        "gradwire: lab: this user may not make a network namespace (unshare: Operation not permitted). Run as root, or "
        "on a kernel that lets users make namespaces (sysctl user.max_user_namespaces), or in a container with the "
        "capabilities NET_ADMIN and SYS_ADMIN. Without them only loopback is left, as in: gradwire demo --loopback"
    )
    fails(capsys, ["--", "true"], 1, message)


@pytest.mark.parametrize(
    "program, refused, started",
    [("/bin/gradwire", True, True), ("/lib/gradwire/__main__.py", True, True), ("/bin/gradwire", False, False),
     ("/bin/pytest", True, False)],
)  # fmt: skip
def test_a_user_who_lacks_rights_gets_the_same_command_line_in_a_user_namespace(program, refused, started, monkeypatch):
    commands = []
    monkeypatch.setattr(
        "gradwire.laboratory.hosts.namespace._refused", lambda *options: "no" if refused and not options else None
    )
    monkeypatch.setattr("os.execvp", lambda file, argv: commands.append((file, argv)))
    monkeypatch.setattr(sys, "argv", [program, "lab", "--", "true"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-W", "error", "-m", "gradwire", "lab", "--", "true"])
    become_able()
    own = [sys.executable, "-W", "error", "-m", "gradwire", "lab", "--", "true"]
    assert commands == [("unshare", ["unshare", "--user", "--map-root-user", "--", *own])] * started


def test_clean_says_what_it_ended_or_that_nothing_was_left(capsys, monkeypatch):
    found, ended = {7: [12, 11]}, []
    monkeypatch.setattr("gradwire.laboratory.hosts.namespace.owners", lambda: found)
    monkeypatch.setattr("gradwire.laboratory.hosts.namespace.end", ended.extend)
    assert main(["lab", "--clean"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ended": [{"owner": 7, "processes": [11, 12]}]}
    assert ended == [12, 11]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["lab", "--clean"]) == 0
    assert capsys.readouterr().out == "ended the lab of process 7: 2 processes\n"
    found.clear()
    assert main(["lab", "--clean"]) == 0
    assert capsys.readouterr().out == "no lab was left\n"
