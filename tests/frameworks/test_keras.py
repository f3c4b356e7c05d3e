"""`distribute` on the three back ends of Keras: against virtual workers, scaled losses, metrics, faults, refusals."""

from __future__ import annotations

import keras_jobs
import numpy
import pytest
from bridged import agree
from ranks import Pool
from steps import SHAPES

pytestmark = [pytest.mark.frameworks, pytest.mark.dist]
LIMIT = {"timeout": 120.0, "deadline": 240.0}  # TensorFlow takes its time to load


@pytest.fixture(scope="module", params=["torch", "jax", "tensorflow"])
def pool_of(kernels, request):
    """Two ranks of their own: a process has one back end; and that."""
    pool = Pool(2)
    yield pool, request.param
    pool.stop()


@pytest.fixture
def ranks(pool_of):
    """Runs jobs, which must succeed."""
    pool, backend = pool_of
    return lambda job, *options, world=2: pool.run(world, job, backend, *options, **LIMIT)


@pytest.fixture
def outcomes(pool_of):
    """Runs jobs, which may fail; nobody waits until the time of the process group is up."""
    pool, backend = pool_of
    return lambda job: pool.outcomes(2, job, backend, timeout=900.0, deadline=240.0)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_fit_gives_what_virtual_workers_give(ranks, eager):
    names = {name: f"[{place}]" for place, name in enumerate(SHAPES)}
    agree(ranks(keras_jobs.fitted, eager), channels_last=True, names=names)


def test_none_is_the_mean_that_keras_takes(ranks):
    assert ranks(keras_jobs.own_mean) == [True, True]


def test_models_begin_alike_and_the_optimizer_takes_the_mean(ranks):
    (first, start, moved), (second, other, also) = ranks(keras_jobs.began)
    assert not all((a == b).all() for a, b in zip(first, second, strict=True))
    for wanted, mine, theirs in zip(first, start, other, strict=True):
        assert (wanted == mine).all()
        assert (wanted == theirs).all()
    for here, there in zip(moved, also, strict=True):
        assert (here == there).all()
        assert numpy.allclose(here, 0.5 * 1.5, atol=1e-6)  # the rate times the mean of 1 and 2


def test_a_scaled_loss_gives_the_same_steps_and_all_ranks_skip_the_same(ranks):
    """Scales are powers of two, so nothing is rounded otherwise; a step that is lost leaves what is owed as it was."""
    assert ranks(keras_jobs.scaled) == [(True, True, 1, 2.0**9)] * 2


def test_metrics_are_the_mean_of_the_ranks_as_floats(ranks):
    (told, first), (also, second) = ranks(keras_jobs.averaged)
    assert told == also
    assert set(told) == {"loss", "val_loss"}
    for name, values in told.items():
        assert all(type(value) is float for value in values)
        assert values == [(a + b) / 2 for a, b in zip(first[name], second[name], strict=True)]
        assert first[name] != second[name]


def test_what_cannot_be_distributed_is_refused(ranks):
    (found,) = ranks(keras_jobs.refusals, world=1)
    beginnings = (
        "distribute: a keras.Model was wanted, got str",
        "distribute: the model has no optimizer; call model.compile(...) first",
        "distribute: the model has no weights yet, so they cannot start alike; give it a keras.Input",
        "distribute: the model is distributed already",
    )
    for sentence, beginning in zip(found, beginnings, strict=True):
        assert sentence.startswith(beginning)


def test_ranks_with_other_models_are_told(outcomes):
    for found in outcomes(keras_jobs.of_other_shapes):
        assert found.kind == "Incompatible"
        assert found.message.startswith("broadcast: the ranks disagree. Rank 0 has arrays [0] float32[40, 32]")
        assert "; rank 1 has arrays [0] float32[40, 33]" in found.message


def test_a_dead_rank_ends_the_others(outcomes):
    survivor, dead = outcomes(keras_jobs.dying)
    assert dead.kind == "Died"
    assert "ExchangeFailed" in survivor.kind + survivor.message
