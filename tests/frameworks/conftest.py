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

from ranks import Pool  # noqa: E402


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.stop()
