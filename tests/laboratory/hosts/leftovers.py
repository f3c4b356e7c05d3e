"""A network of which nothing may be left afterwards: no process in its namespaces, none that carries its mark; and
what the tests wait for or ask of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gradwire.laboratory.hosts import Network

SECONDS = 60.0  # on a busy machine; a quiet one needs a moment


@contextmanager
def network(*arguments: Any, **options: Any) -> Iterator[Network]:
    """`Network(...)`, and the check that all of it has gone."""
    with Network(*arguments, **options) as built:
        namespaces = {_namespace(host.keeper) for host in [*built.hosts, built._switch]}
        assert len(namespaces) == len(built.hosts) + 1
        yield built
    wait_until_gone(os.getpid(), namespaces)


def wait_until_gone(owner: int, namespaces: Iterable[str]) -> None:
    """Fails if anything of the lab is still there after a minute."""
    wanted = set(namespaces)
    assert soon(lambda: not marked(owner) and not inside(wanted)), (marked(owner), inside(wanted))


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within a minute: what was killed takes a moment to go, what was started to show itself."""
    until = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


def on_time() -> bool:
    """Whether this machine's timers are on time. A token bucket loses what a late timer could have sent."""
    late = []
    for _ in range(200):
        start = time.perf_counter()
        time.sleep(0.0005)
        late.append(time.perf_counter() - start - 0.0005)
    return sum(seconds > 0.0005 for seconds in late) <= 4


def marked(owner: int) -> list[int]:
    """Processes that carry the mark of the lab of that process."""
    mark = f"GRADWIRE_LAB={owner}".encode()
    return [p for p in _processes() if mark in _environment(p)]


def inside(namespaces: Iterable[str]) -> list[int]:
    """Processes on hosts."""
    wanted = set(namespaces)
    return [p for p in _processes() if _namespace(p) in wanted]


def namespaces_of(processes: Iterable[int]) -> set[str]:
    """The network namespaces they are in."""
    return {_namespace(p) for p in processes} - {""}


def _processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _environment(process: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return []


def _namespace(process: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{process}/ns/net")
    return ""
