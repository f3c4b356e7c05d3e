"""What all tests share: signals as in the foreground, and one fork server for those that start ranks.

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
    # A shell lets jobs in the background ignore Ctrl-C; what tests start must not inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("dist"):
        _start_server()


@functools.cache
def _start_server() -> None:
    from gradwire.bench import launch

    multiprocessing.get_context("forkserver").set_forkserver_preload(["warm"])
    found = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch, launch._without_interrupts(), launch._environment(launch.KEEP_MEMORY):
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        forkserver.ensure_running()
