"""What the tests of the lab share: the reason why there is none here, and ranks that start quickly."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

import pytest

from gradwire.laboratory.hosts.namespace import missing


@pytest.fixture(scope="session")
def lab() -> None:
    """For ``pytest.mark.usefixtures("lab")``: skips, with the reason, where no lab can be had."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def quick_ranks() -> None:
    """What DDP imports at its first use takes seconds: let the server that ranks are forked from do it once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch._dynamo", "gradwire.laboratory.bench.launch", "gradwire.codecs", "gradwire.integrations.ddp"]
    )
    forkserver.ensure_running()
