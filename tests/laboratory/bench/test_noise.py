"""A busy machine is told from an idle one before anything is measured."""

from __future__ import annotations

import pytest

from gradwire.laboratory.bench import noise
from gradwire.laboratory.bench.noise import Noise


def test_an_idle_machine_gets_no_warning():
    assert Noise(load=0.3, cores=2, spread=1.1).warning is None


@pytest.mark.parametrize("load, spread", [(3.14, 1.1), (0.1, 1.83)])
def test_a_busy_machine_does(load, spread):
    assert Noise(load=load, cores=2, spread=spread).warning == (
        f"this machine is busy: {load:.1f} processes want its 2 cores, and the same work takes 1 to {spread:.1f} times "
        "as long; measured times will be too long, so stop what else runs"
    )


def test_it_is_measured(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (7.0, 0.0, 0.0))
    found = noise.measure()
    assert found.load == 7.0
    assert found.cores >= 1
    assert found.spread >= 1
