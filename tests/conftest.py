"""What all tests share: one thread, signals as in the foreground, links that may be slow, the mark of sweeps, and a
fork server for ranks.

The server has imported and warmed what every rank would have to anew.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from multiprocessing import forkserver
from pathlib import Path

import pytest


def pytest_configure() -> None:
    # Tensors here are small. Beside another process torch's threads wait for each other most of the time: the digests
    # took five times the processor time. Tests that are about threads set their number. Torch must not be loaded yet.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Without a GPU, Triton's interpreter runs the GPU's kernels. Triton asks when it is imported.
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    # A shell lets jobs in the background ignore Ctrl-C; what tests start must not inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from sweeps import is_sweep  # loads torch

    for item in items:
        case = getattr(item, "callspec", None)
        if case is not None and is_sweep(item.nodeid.partition("::")[0], case.params):
            item.add_marker(pytest.mark.sweep)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("dist"):
        _start_server()


@pytest.fixture(autouse=True)
def _links_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's links carry less than was asked for. That tells nothing about what runs over them."""
    monkeypatch.setattr("gradwire.laboratory.hosts.network.LEAST", 0.02)


@functools.cache
def _start_server() -> None:
    from gradwire.laboratory.bench import launch

    multiprocessing.get_context("forkserver").set_forkserver_preload(["warm"])
    found = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch, launch._without_interrupts():
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        forkserver.ensure_running()
