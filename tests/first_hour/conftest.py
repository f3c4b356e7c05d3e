"""One wheel and one clean environment for all processes that run these tests."""

from __future__ import annotations

import os

import pytest
from clean_environment import add_dependencies, build, environment
from filelock import FileLock


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that processes of one run of the tests share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def dist(shared):
    """What `make dist` builds."""
    with FileLock(shared / "dist.lock"):
        found = shared / "tree" / "dist"
        return found if found.exists() else build(shared / "tree")


@pytest.fixture(scope="session")
def installed(shared, dist):
    """An environment with the wheel and its extra `cli`; not `cpu`: Numba's kernels take half a minute to compile."""
    with FileLock(shared / "installed.lock"):
        folder = shared / "installed"
        if not folder.exists():
            environment(folder, dist)
            add_dependencies(folder)
            add_dependencies(folder, "cli")
        return folder
