"""The pool of ranks of the integrations' tests, for other frameworks; TensorFlow is loaded once for all of them."""

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

os.environ.setdefault("WARM_TOO", "tensorflow")  # loading it takes 5 to 10 s of a processor, and starts no thread

from ranks import Pool


@pytest.fixture(scope="session")
def kernels() -> None:
    """All that ranks will need is compiled: in a fresh clone that takes minutes, and none of them waits so long."""
    from steps import CODECS, of_cluster

    for codec in CODECS:
        of_cluster(codec, 2, None, True)


@pytest.fixture(scope="session")
def pool(kernels: None) -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.stop()
