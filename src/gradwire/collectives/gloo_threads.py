"""Gloo's threads come to rest before the interpreter ends.

A thread of gloo holds the tensors of a collective a moment longer than those who waited for it. If the interpreter ends
in between, torch aborts the process ("terminate called without an active exception"), and a rank whose work is done
counts as failed. `destroy_process_group` ends these threads only if nobody else, such as DDP, still has the group.
"""

from __future__ import annotations

import time
from pathlib import Path

THREAD = "pt_gloo_runloop"
SECONDS = 1.0  # at most
LOOK = 0.01  # seconds between two looks: longer than a thread that wants the interpreter waits before it asks again


def rest() -> None:
    """At exit: sleep, which leaves the interpreter to the threads, until none of them has done anything meanwhile."""
    until = time.monotonic() + SECONDS
    before = _threads()
    while before and time.monotonic() < until:
        time.sleep(LOOK)
        now = _threads()
        if now == before and all(state.startswith("S") for state, _ in now.values()):
            return
        before = now


def _threads() -> dict[str, tuple[str, str]]:
    """State of each thread of gloo, and how often it went to sleep so far. Of Linux alone: elsewhere none is found."""
    found = {}
    for thread in Path("/proc/self/task").glob("*/status"):
        try:
            told = dict(line.split(":\t", 1) for line in thread.read_text().splitlines() if ":\t" in line)
        except OSError:  # it has ended
            continue
        if told.get("Name") == THREAD:  # sandboxes leave some lines out
            found[thread.parent.name] = (told.get("State", ""), told.get("voluntary_ctxt_switches", ""))
    return found
