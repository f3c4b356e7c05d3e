"""`distribute`: models begin alike, steps take the mean, and what cannot be distributed is refused."""

from __future__ import annotations

import keras_jobs
import numpy
import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.dist]
LIMIT = {"timeout": 60.0, "deadline": 120.0}


def test_models_begin_alike_and_the_optimizer_takes_the_mean(pool):
    (first, start, moved), (second, other, also) = pool.run(2, keras_jobs.began, **LIMIT)
    assert not all((a == b).all() for a, b in zip(first, second, strict=True))
    for wanted, mine, theirs in zip(first, start, other, strict=True):
        assert (wanted == mine).all()
        assert (wanted == theirs).all()
    for here, there in zip(moved, also, strict=True):
        assert (here == there).all()
        assert numpy.allclose(here, 0.5 * 1.5, atol=1e-6)  # the rate times the mean of 1 and 2


def test_what_cannot_be_distributed_is_refused(pool):
    (found,) = pool.run(1, keras_jobs.refusals, **LIMIT)
    beginnings = (
        "distribute: a keras.Model was wanted, got str",
        "distribute: the model has no optimizer; call model.compile(...) first",
        "distribute: the model has no weights yet, so they cannot start alike; give it a keras.Input",
        "distribute: under float16 each rank would skip steps by itself",
        "distribute: the model is distributed already",
    )
    for sentence, beginning in zip(found, beginnings, strict=True):
        assert sentence.startswith(beginning)
