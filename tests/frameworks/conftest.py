"""The pool of ranks of the integrations' tests, for other frameworks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integrations"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow tells of the processor it was not built for
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# four devices on one CPU; beside other work they wait long for each other
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=4 --xla_cpu_collective_call_terminate_timeout_seconds=300",
)

from ranks import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.stop()
