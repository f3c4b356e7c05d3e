"""Where a measurement was made: commit, hardware, versions. Paths and host names are left out."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import gradwire

SECONDS = 10  # for any of the small programs asked here


def now() -> str:
    """The time of a record: UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> tuple[str, bool]:
    """The commit of the source tree and whether the package's files differ from it.

    A copy without its history, or with another's, is what ``GRADWIRE_COMMIT`` in the environment says, or "unknown".
    """
    told = os.environ.get("GRADWIRE_COMMIT")
    if told:
        return told, False
    package = Path(gradwire.__file__).resolve().parent
    root = _ask("git", "-C", str(package), "rev-parse", "--show-toplevel")
    # An installed copy may lie inside somebody else's checkout: only the tree that holds our sources counts.
    if not root or Path(root).resolve() / "src" / "gradwire" != package:
        return "unknown", False
    name = _ask("git", "-C", root, "rev-parse", "HEAD")
    # Without locks: asking must not disturb a git that runs beside us.
    changed = _ask("git", "--no-optional-locks", "-C", root, "status", "--porcelain", "--", "src/gradwire")
    return name or "unknown", bool(name) and changed != ""


def memory_bytes() -> int:
    """Of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def fingerprint(backend: str) -> dict[str, Any]:
    """Hardware and versions. `backend` is what carried the bytes, such as "gloo over loopback"."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "os": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": _version("numba"),
        "gradwire": gradwire.__version__,
        "backend": backend,
    }


def _cpu() -> str:
    """The processor's name; /proc/cpuinfo has none on ARM, lscpu knows them."""
    lines = (_ask("lscpu") or "").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("Model name:"))
    return next(names, "") or platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    """Of an optional package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _ask(*command: str) -> str | None:
    """What a program prints; None if it is not there or fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
