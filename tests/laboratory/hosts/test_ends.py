"""However a lab ends, nothing is left of it: Ctrl-C, SIGTERM, SIGKILL, `--clean`; as root and as any user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from leftovers import marked, namespaces_of, network, soon, wait_until_gone

from gradwire.laboratory.hosts.namespace import end, owners

pytestmark = pytest.mark.usefixtures("lab")
PROCESSES = 3 * 2 + 2 * 2  # two for each host and the switch; a rank and its child on each host

# A rank that starts a child in a session of its own, tells, and sleeps.
BUSY = [
    sys.executable,
    "-S",
    "-c",
    "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print('up'); time.sleep(600)",
]
LAB = [sys.executable, "-m", "gradwire", "lab", "--hosts", "2", "--no-verify", "--", *BUSY]
SOURCES = str(Path(__file__).parents[3] / "src")
NOBODY = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--",
    "env",
]  # env: a second exec, which has root's rights no more


@contextmanager
def busy_lab():
    """A `gradwire lab` whose ranks are at work."""
    with subprocess.Popen(LAB, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert {process.stdout.readline() for _ in range(2)} == {"[0] up\n", "[1] up\n"}
            assert soon(lambda: len(marked(process.pid)) == PROCESSES)  # a child shows its mark a moment later
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "number, code, message",
    [
        (signal.SIGINT, 130, "gradwire: interrupted\n"),
        (signal.SIGTERM, 143, "gradwire lab: ended by SIGTERM\n"),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_nothing_is_left_when_the_owner_ends(number, code, message):
    with busy_lab() as process:
        processes = marked(process.pid)
        hosts = namespaces_of(processes)
        assert len(hosts) == 3
        start = time.monotonic()
        process.send_signal(number)
        assert process.stderr.read() == message
        assert process.wait() == code
        wait_until_gone(process.pid, hosts)
        assert time.monotonic() - start < 100  # the sleepers would take 600


def test_other_labs_are_found_and_ended_but_not_ones_own(monkeypatch):
    with busy_lab() as process, network(2) as built:
        found = owners()
        assert sorted(found[process.pid]) == sorted(marked(process.pid))
        assert os.getpid() not in found
        monkeypatch.setenv("GRADWIRE_LAB", str(process.pid))  # as if this test ran on one of its hosts
        assert process.pid not in owners()
        process.send_signal(signal.SIGSTOP)
        end(found[process.pid])
        assert marked(process.pid) == []
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 137
        assert "was ended by SIGKILL; the others are stopped" in process.stderr.read()
        assert soon(lambda: len(marked(os.getpid())) == 6)
        built.cut(0)  # it is still there


# In a process namespace of its own, so that --clean finds no lab that somebody really uses.
CLEAN = f"""
import json, signal, subprocess, time
from gradwire.laboratory.hosts.namespace import owners
lab = subprocess.Popen({LAB!r}, stdout=subprocess.PIPE)
lab.stdout.readline(), lab.stdout.readline()
until = time.monotonic() + 60
while len(owners().get(lab.pid, [])) < {PROCESSES} and time.monotonic() < until:
    time.sleep(0.02)
lab.send_signal(signal.SIGSTOP)
clean = {[*LAB[:4], "--clean"]!r}
print(json.dumps([lab.pid, *(json.loads(subprocess.check_output(clean)) for _ in range(2))]))
lab.kill()
"""


def test_clean_ends_a_lab_whose_owner_is_stopped():
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("/proc cannot be mounted here, so that --clean would reach the labs of others")
    done = subprocess.run([*alone, sys.executable, "-c", CLEAN], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    number, first, second = json.loads(done.stdout)
    assert [one["owner"] for one in first["ended"]] == [number]
    assert len(first["ended"][0]["processes"]) == PROCESSES
    assert second == {"ended": []}


def test_any_user_gets_a_lab_in_a_user_namespace():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user takes root and the program setpriv")
    python = next((p for p in (sys.executable, "/usr/bin/python3") if runs_as_nobody(p)), None)
    if python is None:
        pytest.skip("the user nobody may not read Python, its packages or this repository")
    if subprocess.run(
        [*NOBODY, "unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True
    ).returncode:
        pytest.skip("this kernel does not let users make namespaces")
    show = "echo $RANK $(id -u) $MASTER_ADDR; ip -o link | wc -l"
    command = [python, "-m", "gradwire", "lab", "--hosts", "2", "--no-verify", "--", "sh", "-c", show]
    done = subprocess.run([*NOBODY, *command], capture_output=True, text=True, timeout=120, env=plain(), cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] 0 0 10.99.0.1", "[0] 2", "[1] 1 0 10.99.0.1", "[1] 2"]
    say = "from gradwire.laboratory.hosts.namespace import missing; print(missing())"
    done = subprocess.run([*NOBODY, python, "-c", say], capture_output=True, text=True, env=plain(), cwd="/")
    assert done.stdout.endswith(
        "Start the program that needs the lab with: unshare --user --map-root-user -- PROGRAM\n"
    )

    command = [python, "-m", "gradwire", "lab", "--hosts", "2", "--no-verify", "--", "sh", "-c", "echo up; sleep 600"]
    with subprocess.Popen([*NOBODY, *command], stdout=subprocess.PIPE, text=True, env=plain(), cwd="/") as process:
        assert process.stdout.readline().endswith("up\n")
        clean = [*NOBODY, *command[:4], "--clean"]
        answer = json.loads(subprocess.run(clean, capture_output=True, text=True, env=plain(), cwd="/").stdout)
        assert process.wait(60) == 137
    assert [one["owner"] for one in answer["ended"]] == [process.pid]


def runs_as_nobody(python):
    command = [*NOBODY, python, "-c", "import gradwire.cli.app"]
    return not subprocess.run(command, capture_output=True, env=plain(), cwd="/").returncode


def plain():
    """An environment in which any Python of this version finds gradwire and what it needs."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([SOURCES, *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
