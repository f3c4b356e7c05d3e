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
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gradwire.core.errors import LabFailed

T = TypeVar("T")

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
MARK = "GRADWIRE_LAB"  # in the environment of all that a lab starts: the process that owns it
AS_ROOT = ("--user", "--map-root-user")  # of a user namespace of one's own
CLONE_NEWNET, CLONE_NEWPID = 0x40000000, 0x20000000
SECONDS = 30  # for any of the small programs used here
GONE = 5.0  # seconds in which what was killed disappears
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
    problem = _refused()
    if problem is None:
        return None
    if _refused(*AS_ROOT) is None:
        return (
            f"lab: this user may make a network namespace only as root of a user namespace ({problem}). "
            f"Start the program that needs the lab with: unshare {' '.join(AS_ROOT)} -- PROGRAM"
        )
    return f"lab: this user may not make a network namespace ({problem}). {CHOICES}"


def become_able(argv: Sequence[str] | None = None) -> None:
    """Start this program again as root of a user namespace of its own, where that is what it lacks; else return.

    For commands of gradwire, before they have done anything. Another program that calls them is left alone: it would
    be started again from its beginning. `argv` is what to run; by default, this process's own command line.
    """
    program = Path(sys.argv[0])
    ours = program.name == "gradwire" or (program.parent.name, program.name) == ("gradwire", "__main__.py")
    if not ours or sys.platform != "linux" or shutil.which("unshare") is None:
        return
    if _refused() is not None and _refused(*AS_ROOT) is None:
        sys.stdout.flush()
        command = [sys.executable, *sys.orig_argv[1:]] if argv is None else argv
        os.execvp("unshare", ["unshare", *AS_ROOT, "--", *command])


def _refused(*options: str) -> str | None:
    """What the kernel has against new namespaces; None if nothing."""
    command = ["unshare", *options, "--net", "--pid", "--fork", "true"]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return tried.stderr.strip() or f"exit code {tried.returncode}" if tried.returncode else None


# -------------------------------------------------------------------- a host


@dataclass(frozen=True)
class Namespace:
    """Where to find a host; can be handed to other processes of this machine."""

    keeper: int  # process

    def join(self) -> None:
        """Move the calling thread, and the threads it will start, onto this host's network."""
        self._enter("net", CLONE_NEWNET)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command on this host, as a child of this process. It ends with the host, and all it has started."""

        def begin() -> subprocess.Popen[str]:
            self.join()
            self._enter("pid_for_children", CLONE_NEWPID)
            return subprocess.Popen(command, text=True, **options)

        return _aside(begin)

    def batch(self, program: str, lines: Iterable[str]) -> None:
        """Run lines of `ip` or `tc` on this host."""
        text = "\n".join(lines) + "\n"

        def feed() -> subprocess.CompletedProcess[str]:
            self.join()
            command = [program, "-batch", "-"]
            return subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)

        done = _aside(feed)
        if done.returncode:
            hint = f" {CHOICES}" if "not permitted" in done.stderr else ""
            raise LabFailed(f"lab: {program} refused: {' '.join(done.stderr.split())}{hint}")

    def _enter(self, kind: str, flag: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            with open(f"/proc/{self.keeper}/ns/{kind}") as file:
                if libc.setns(file.fileno(), flag):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError as problem:
            raise LabFailed(f"lab: cannot enter a host ({problem.strerror}); is its network still open?") from problem


def _aside(function: Callable[[], T]) -> T:
    """Call it on a thread of its own: one that has moved to a host cannot always move back."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(function).result()


class Keeper:
    """Holds one namespace open until it is closed or this process ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: owner()},
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
        """Return when the host is gone. What this process has started there must have been waited for."""
        self.release()
        try:
            self._process.wait(GONE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# -------------------------------------------------------------------- labs that are left


def owner() -> str:
    """This process by the number that /proc knows it by, which differs from its own inside a process namespace."""
    return os.readlink("/proc/self")


def owners() -> dict[int, list[int]]:
    """Labs of this user, less those that the calling process owns or runs in: owner -> processes with its mark."""
    ours = {owner(), os.environ.get(MARK)}
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        mark = _mark(int(folder.name))
        if mark is not None and mark not in ours:
            found.setdefault(int(mark), []).append(int(folder.name))
    return found


def end(processes: Iterable[int]) -> None:
    """End processes of a lab and wait until they are gone; a keeper takes its host along."""
    left = set(processes)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    until = time.monotonic() + GONE
    while any(_mark(process) for process in left) and time.monotonic() < until:
        time.sleep(0.01)


def _mark(process: int) -> str | None:
    """The owner of the lab that a process of this user belongs to; None if to none, and of one that has ended."""
    folder = Path(f"/proc/{process}")
    with suppress(OSError):
        if folder.stat().st_uid == os.getuid():
            for entry in (folder / "environ").read_bytes().split(b"\0"):
                name, _, value = entry.decode(errors="replace").partition("=")
                if name == MARK and value.isdigit():
                    return value
    return None
