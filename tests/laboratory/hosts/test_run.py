"""One command on all ranks: environment, output by rank, exit codes, time-out, faults."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from leftovers import inside, marked, namespaces_of, network, soon

from gradwire.core.errors import ConfigError
from gradwire.laboratory.hosts import Fault, Network, run

needs_lab = pytest.mark.usefixtures("lab")
SHELL = ["sh", "-c"]
LEAVE = "import subprocess; subprocess.Popen(['sleep', '600'], stdout=-3, stderr=-3, start_new_session=True)"


def ran(built, command, **options):
    """Exit code, output lines and error lines of a command."""
    out, err = io.StringIO(), io.StringIO()
    code = run(built, command, out=out, err=err, **options)
    return code, sorted(out.getvalue().splitlines()), err.getvalue().splitlines()


@needs_lab
def test_each_rank_finds_what_torchrun_would_set(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with network(2) as built:
        show = [sys.executable, "-S", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
        code, out, err = ran(built, show, per_host=2)
    assert (code, err) == (0, [])
    assert [line[:4] for line in out] == ["[0] ", "[1] ", "[2] ", "[3] "]
    common = {
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.99.0.1",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "GRADWIRE_LAB": str(os.getpid()),
        "PATH": os.environ["PATH"],
    }
    for rank, line in enumerate(out):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)}
        assert json.loads(line[4:]).items() >= (common | own).items()


@needs_lab
def test_output_is_prefixed_line_by_line_on_the_stream_it_came_from():
    with network(2) as built:
        code, out, err = ran(built, [*SHELL, r"printf 'a\nb \377'; printf 'c\n' >&2"])
    assert code == 0
    assert out == ["[0] a", "[0] b \ufffd", "[1] a", "[1] b \ufffd"]
    assert sorted(err) == ["[0] c", "[1] c"]


@needs_lab
def test_the_code_is_that_of_the_rank_that_failed_first():
    with network(3) as built:
        code, _, err = ran(built, [*SHELL, "sleep $((20 - 10 * RANK)); exit $((40 + RANK))"])
        assert (code, err) == (42, ["gradwire lab: rank 2 of 3 ended with exit code 42; the others are stopped"])
        code, _, err = ran(built, [*SHELL, "[ $RANK = 0 ] || kill -SEGV $$; sleep 60"])
        assert (code, err) == (139, ["gradwire lab: rank 1 of 3 was ended by SIGSEGV; the others are stopped"])


@needs_lab
def test_a_time_out_ends_all_ranks_also_those_that_do_not_listen(monkeypatch):
    monkeypatch.setattr("gradwire.laboratory.hosts.commands.STOP", 1.0)  # a busy machine needs as much to say no
    with network(2) as built:
        start = time.monotonic()
        code, out, err = ran(built, [*SHELL, "trap 'echo no' TERM; while :; do sleep 0.05; done"], timeout=1)
        assert time.monotonic() - start < 20
    assert (code, err[0]) == (124, "gradwire lab: the time of 1 s was up; rank 0, 1 still ran")
    assert out == ["[0] no", "[1] no"]


@needs_lab
def test_what_a_rank_leaves_behind_ends_with_it_or_with_the_network():
    with network(2) as built:
        start = time.monotonic()
        assert ran(built, [*SHELL, "sleep 600 & echo up"]) == (0, ["[0] up", "[1] up"], [])
        assert time.monotonic() - start < 20  # although the sleepers hold the output open
        hosts = namespaces_of(host.keeper for host in built.hosts)
        assert soon(lambda: len(inside(hosts)) == 4)  # the keepers alone
        run(built, [sys.executable, "-S", "-c", LEAVE])
        assert soon(lambda: len(inside(hosts)) == 6)  # and the two that left their rank
        assert soon(lambda: len(marked(os.getpid())) == 8)  # and the two of the switch
    # `network` now waits until all of them have gone


@needs_lab
def test_faults_happen_in_time_and_are_told():
    with network(2, "100mbit") as built:
        faults = [Fault.parse(text) for text in ("slow:0@0.3", "cut:1@0.1", "mend:1@0.2", "kill:1@0.4")]
        start = time.monotonic()
        code, _, err = ran(built, ["sleep", "60"], faults=faults)
        assert 0.4 < time.monotonic() - start < 20
        assert built.rates == [10e6, 100e6]
    assert code == 137
    assert err == [
        "gradwire lab: host 1's link is cut",
        "gradwire lab: host 1's link is mended",
        "gradwire lab: host 0's link is slowed to 10 Mbit/s",
        "gradwire lab: rank 1 is killed",
        "gradwire lab: rank 1 of 2 was ended by SIGKILL; the others are stopped",
    ]


@needs_lab
@pytest.mark.parametrize(
    "command, options, message",
    [
        ([], {}, "lab: `command` must be a program and its arguments, got []"),
        (["no-such-program"], {}, "lab: cannot start 'no-such-program': No such file or directory"),
        (["true"], {"per_host": 0}, "lab: `per_host` must be a whole number of at least 1, got 0"),
        (["true"], {"timeout": 0}, "lab: `timeout` must be a number of seconds above 0, got 0"),
        (["true"], {"faults": [Fault("cut", 2, 0.0)]}, "lab: `cut` must be a whole number from 0 to 1, got 2"),
        (
            ["true"],
            {"per_host": 2, "faults": [Fault("kill", 4, 0.0)]},
            "lab: `kill` must be a whole number from 0 to 3, got 4",
        ),
    ],
)
def test_commands_that_cannot_be_run_are_refused(command, options, message):
    with network(2) as built, pytest.raises(ConfigError) as caught:
        run(built, command, **options)
    assert str(caught.value) == message


@needs_lab
def test_the_example_of_the_docs_runs(monkeypatch):
    page = Path(__file__).parents[3] / "docs" / "lab.md"
    [snippet] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setattr(Network, "verify", lambda self: None)
    names: dict[str, object] = {}
    exec(snippet.replace('["python", "train.py"]', '["true"]'), names)
    assert names["code"] == 0


def test_faults_are_written_in_one_way():
    assert Fault.parse("cut:2@5") == Fault("cut", 2, 5.0)
    assert Fault.parse("kill:0@0.25") == Fault("kill", 0, 0.25)


@pytest.mark.parametrize(
    "text", ["", "cut", "cut:1", "cut@1", "burn:1@1", "cut:x@1", "cut:-1@1", "cut:1@-1", "cut:1@nan"]
)
def test_other_faults_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        Fault.parse(text)
    assert str(caught.value) == (
        f"lab: a fault is cut:HOST@SECONDS, mend:HOST@SECONDS, slow:HOST@SECONDS or kill:RANK@SECONDS, got {text!r}"
    )
