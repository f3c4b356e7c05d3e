"""Codecs inside compiled JAX programs, one device a process: as in one process, and an end when a process dies."""

from __future__ import annotations

import axis_jobs
import numpy
import pytest
from ranks import Failure, Pool
from steps import STEPS, flat

pytestmark = [pytest.mark.frameworks, pytest.mark.dist, pytest.mark.timeout(600)]
jax = pytest.importorskip("jax")
EXACT = ("blockint(bits=4)", "topk(ratio=0.05)", "bf16")
CLOSE = {"none": 1e-6}  # sums of several processes have an order of their own; powersgd, slow to compile, sends such
BY_WORKERS = [(2, (*EXACT, *CLOSE)), (4, (*EXACT[:2], *CLOSE))]  # all of them are compiled by each process
LIMIT = {"timeout": 300.0, "deadline": 500.0}


@pytest.fixture
def fresh():
    """Processes of their own: JAX asks who is there once in the life of each."""
    pool = Pool(4)
    yield pool
    pool.stop()


@pytest.mark.parametrize("workers, codecs", BY_WORKERS, ids=["2", "4"])
def test_processes_reduce_as_the_devices_of_one_process_do(fresh, workers, codecs):
    everyone = fresh.run(workers, axis_jobs.reduced, codecs, **LIMIT)
    for codec in codecs:
        step, state = axis_jobs.reducer(codec, workers)
        for number in range(STEPS):
            wanted, state = step(axis_jobs.gradients(number, workers), state)
            for name, array in flat(wanted).items():
                expected = numpy.asarray(array)
                # what travels as it is, in a sum, is close under every codec
                most = CLOSE.get(codec, 0 if expected.size >= 1024 else 1e-6) * numpy.abs(expected).max()
                for found in everyone:
                    assert numpy.abs(found[codec][0][number][name] - expected).max() <= most, (codec, number, name)
                    assert (found[codec][0][number][name] == everyone[0][codec][0][number][name]).all()
        kept = [numpy.asarray(part) for part in (state.error, state.owner_error) if part is not None]
        for rank, found in enumerate(everyone):
            assert len(found[codec][1]) == len(kept)
            if codec in EXACT:
                assert all((mine == rows[rank]).all() for mine, rows in zip(found[codec][1], kept, strict=True)), codec


def test_a_dead_process_ends_the_others(fresh):
    survivor, dead = fresh.outcomes(2, axis_jobs.reduced, ["blockint(bits=8)"], 1, timeout=900.0, deadline=200.0)
    assert isinstance(dead, Failure)
    assert dead.kind == "Died"
    assert survivor.kind == "JaxRuntimeError"
    assert "Gloo" in survivor.message
