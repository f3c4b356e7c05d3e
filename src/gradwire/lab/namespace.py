"""One emulated host: a network namespace and a process namespace, both kept alive by one idle process.

The keeper reads a pipe that this process holds open and never writes to. When this process ends, however it ends, the
pipe closes, the keeper leaves, the kernel kills what still runs on that host and removes its interfaces. So there is no
clean-up that a crash could prevent.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradwire.core.errors import LabFailed

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
MARK = "GRADWIRE_LAB"  # in the environment of all that a lab starts: the process that owns it
CLONE_NEWNET = 0x40000000
SECONDS = 30  # for any of the small programs used here
CHOICES = (
    "Run as root, or on a kernel that lets users make namespaces (sysctl user.max_user_namespaces), or in a container "
    "with the capabilities NET_ADMIN and SYS_ADMIN. Without them only loopback is left, as in: gradwire demo --loopback"
)


def missing() -> str | None:
    """Why there can be no lab here, as a whole sentence; None where there can."""
    if sys.platform != "linux":
        return f"lab: network namespaces are a thing of Linux, and this is {sys.platform}; use a Linux machine"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        packages = " and ".join(sorted({PROGRAMS[name] for name in absent}))
        return f"lab: {', '.join(absent)} not found; install the package {packages} of your distribution"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "true"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if tried.returncode:
        return f"lab: this user may not make a network namespace ({tried.stderr.strip()}). {CHOICES}"
    return None


def become_able(argv: Sequence[str]) -> None:
    """Start this program again as root of a user namespace of its own, where that helps; else return.

    For command lines, before they have done anything: `argv` is what to run.
    """
    if sys.platform != "linux" or os.geteuid() == 0 or "GRADWIRE_USERNS" in os.environ or not shutil.which("unshare"):
        return
    inside = ["unshare", "--user", "--map-root-user"]
    tried = subprocess.run(
        [*inside, "unshare", "--net", "--pid", "--fork", "true"], capture_output=True, timeout=SECONDS, check=False
    )
    if tried.returncode == 0:
        sys.stdout.flush()
        os.execvpe(inside[0], [*inside, "--", *argv], {**os.environ, "GRADWIRE_USERNS": "1"})


@dataclass(frozen=True)
class Namespace:
    """Where to find a host; can be handed to other processes of this machine."""

    keeper: int  # process

    @property
    def network(self) -> str:
        return f"/proc/{self.keeper}/ns/net"

    @property
    def enter_command(self) -> list[str]:
        """What to put before a command that shall run on this host and end with it."""
        return ["nsenter", f"--net={self.network}", f"--pid=/proc/{self.keeper}/ns/pid_for_children", "--"]

    def join(self) -> None:
        """Move the calling thread, and the threads it will start, onto this host's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(self.network) as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise LabFailed(f"lab: cannot enter a host's network: {os.strerror(ctypes.get_errno())}")

    def batch(self, program: str, lines: Iterable[str]) -> None:
        """Run lines of `ip` or `tc` on this host."""
        command = ["nsenter", f"--net={self.network}", "--", program, "-batch", "-"]
        text = "\n".join(lines) + "\n"
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            hint = f" {CHOICES}" if "not permitted" in done.stderr else ""
            raise LabFailed(f"lab: {program} refused: {' '.join(done.stderr.split())}{hint}")


class Keeper:
    """Holds one namespace open until it is closed or this process ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: str(os.getpid())},
            start_new_session=True,  # Ctrl-C is for the owner, which then ends this one
        )
        self.namespace = Namespace(self._process.pid)

    def ready(self) -> None:
        """Wait until the namespace is there."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            problem = self._process.stderr.read().decode().strip()
            raise LabFailed(f"lab: no namespace for a host: {problem}. {CHOICES}")

    def release(self) -> None:
        """Let the host end, and everything on it."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        """Return when the host is gone."""
        self.release()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def owners() -> dict[int, list[int]]:
    """Labs on this machine that this user may end: owner -> processes that carry its mark."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = entry.partition(b"=")
                if name == MARK.encode() and value.isdigit() and int(folder.name) != os.getpid():
                    found.setdefault(int(value), []).append(int(folder.name))
    return found


def end(processes: Iterable[int]) -> None:
    """End processes of a lab; a keeper takes its host along."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
