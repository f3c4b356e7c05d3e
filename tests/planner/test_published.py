"""The published formulas against values worked out by hand, and the byte counts they are fed with."""

from __future__ import annotations

import math

import pytest

from gradwire import models
from gradwire.core.errors import ConfigError
from gradwire.planner import published as paper

GBIT10 = 10e9
RN50, RN101, BERT = 97e6, 170e6, 418e6
RN50_R4 = (440_960, 878_896)
RN101_R4 = (858_752, 1_853_744)
RN101_R16 = (3_435_008, 7_414_976)

GOLDEN = {
    "ring": (lambda: paper.ring_all_reduce(25e6, 64, GBIT10), 39.3750),
    "ring with the quoted latency": (lambda: paper.ring_all_reduce(25e6, 96, GBIT10, latency=0.5e-3), 134.5833),
    "sync RN50": (lambda: paper.sync_sgd(RN50, 64, GBIT10, backward=0.122), 165.1900),
    "sync RN101, network bound": (lambda: paper.sync_sgd(RN101, 96, GBIT10, backward=0.200), 269.1667),
    "sync RN101, compute bound": (lambda: paper.sync_sgd(RN101, 96, GBIT10, backward=0.240), 288.4667),
    "sync BERT": (lambda: paper.sync_sgd(BERT, 96, GBIT10, backward=0.290), 661.8333),
    "sync BERT, 15 us": (lambda: paper.sync_sgd(BERT, 96, GBIT10, backward=0.290, latency=15e-6), 710.2833),
    "no overlap": (lambda: paper.sync_sgd_without_overlap(RN50, 64, GBIT10, backward=0.122), 274.7750),
    "PowerSGD RN50 R4": (
        lambda: paper.powersgd(*RN50_R4, 64, GBIT10, backward=0.122, encode_decode=0.045),
        169.0788,
    ),
    "PowerSGD RN101 R16": (
        lambda: paper.powersgd(*RN101_R16, 96, GBIT10, backward=0.200, encode_decode=0.2528),
        469.9791,
    ),
    "MSTopK": (
        lambda: paper.mstopk(0.01 * RN50, 0.01 * RN50, 16, GBIT10, backward=0.122, encode_decode=0.103),
        248.2800,
    ),
    "signSGD": (lambda: paper.signsgd(RN101, 96, GBIT10, backward=0.200, encode_decode=0.01634), 620.0900),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_milliseconds(name):
    compute, wanted = GOLDEN[name]
    assert round(1e3 * compute(), 4) == wanted


@pytest.mark.parametrize(
    "matrices, model_bytes, backward, encode_decode, wanted",
    [(RN50_R4, RN50, 0.122, 0.045, 9.0237), (RN101_R4, RN101, 0.2328, 0.0875, 8.2272)],
)
def test_golden_crossovers(matrices, model_bytes, backward, encode_decode, wanted):
    found = paper.crossover(
        lambda rate: paper.powersgd(*matrices, 64, rate, backward=backward, encode_decode=encode_decode),
        lambda rate: paper.sync_sgd(model_bytes, 64, rate, backward=backward),
    )
    assert found / 1e9 == pytest.approx(wanted, rel=2e-4)  # inputs of the second are given to four digits


MATRIX_BYTES = {  # P, Q and vectors at rank 4
    "resnet50": (440_960, 878_896, 216_480),
    "resnet101": (858_752, 1_853_744, 425_376),
    "bert-base": (1_835_952, 1_370_112, 488_448),
}


def matrices_of(name):
    """(rows, columns) of each matrix, and the floats of all vectors."""
    shapes = [tuple(p.shape) for p in models.build(name).parameters()]
    matrices = [(s[0], math.prod(s[1:])) for s in shapes if len(s) > 1]
    return matrices, sum(s[0] for s in shapes if len(s) == 1)


@pytest.mark.parametrize("name", MATRIX_BYTES)
def test_bytes_of_low_rank_matrices_follow_from_shapes(name):
    matrices, vectors = matrices_of(name)
    p = sum(4 * rows * min(rows, columns, 4) for rows, columns in matrices)
    q = sum(4 * columns * min(rows, columns, 4) for rows, columns in matrices)
    assert (p, q, 4 * vectors) == MATRIX_BYTES[name]


def test_buckets_are_full_but_for_the_last():
    assert paper.buckets(97e6) == (4, 22e6)
    assert paper.buckets(100e6) == (4, 25e6)
    assert paper.buckets(1e6) == (1, 1e6)


def test_one_bucket_hides_nothing():
    assert paper.sync_sgd(20e6, 64, GBIT10, backward=0.1) == pytest.approx(0.107 + 0.0315)


def test_overlap_never_costs_more_than_the_slowdown():
    for rate in (1e9, 1e10, 1e11, 1e12):
        hidden = paper.sync_sgd(RN101, 64, rate, backward=0.2, slowdown=1.0)
        assert hidden <= paper.sync_sgd_without_overlap(RN101, 64, rate, backward=0.2)


def test_table_1_orders_the_schemes():
    """At 64 workers: a ring moves two copies, a tree twelve, a server 126."""
    seconds = [f(1.25e9, 64, GBIT10) for f in (paper.ring_all_reduce, paper.tree_all_reduce, paper.parameter_server)]
    assert seconds == pytest.approx([2 * 63 / 64, 12, 126])
    latency = [f(0, 64, GBIT10, latency=1.0) for f in (paper.ring_all_reduce, paper.tree_all_reduce)]
    assert latency == [126, 12]
    assert paper.parameter_server(0, 64, GBIT10, latency=1.0) == 2
    assert paper.all_gather(0, 64, GBIT10, latency=1.0) == 2


def test_no_crossover_where_one_side_always_wins():
    assert paper.crossover(lambda rate: 1.0, lambda rate: 2.0) is None
    assert paper.crossover(lambda rate: 2.0, lambda rate: 1.0) is None


def test_required_compression_by_either_definition():
    at = dict(gpus=64, bits_per_second=GBIT10, backward=0.076)
    hidden = paper.required_compression(RN101, **at)
    assert hidden == pytest.approx(6 * 0.039375 / (1.07 * 0.076))
    whole = paper.required_compression(RN101, **at, within=0.1)
    assert whole == pytest.approx(0.0315 / (0.1 * 1.07 * 0.076))  # the last bucket alone decides
    assert paper.required_compression(1e6, 64, GBIT10, backward=1.0) == 1.0
    assert paper.required_compression(RN101, 64, GBIT10, backward=0.01, latency=1.0) == math.inf


def test_less_encoding_for_more_bytes():
    given = dict(backward=0.122, encode_decode=0.045)
    assert paper.traded(*RN50_R4, 64, GBIT10, **given, k=1, l=1) == paper.powersgd(*RN50_R4, 64, GBIT10, **given)
    more = paper.traded(*RN50_R4, 64, GBIT10, **given, k=2, l=3)
    assert more == pytest.approx(0.122 + 0.0225 + 6 * paper.ring_all_reduce(sum(RN50_R4), 64, GBIT10))
    with pytest.raises(ConfigError, match=r"published.traded: `k` and `l` are factors above 0, got 0 and 1"):
        paper.traded(*RN50_R4, 64, GBIT10, **given, k=0, l=1)
