"""Intervals of medians: what they hold, and how often."""

from __future__ import annotations

import math
import random

import pytest

from gradwire.core.intervals import median, of_medians, ratio


def test_few_values_give_the_least_and_the_greatest():
    found = median([3.0, 1.0, 2.0])
    assert (found.middle, found.low, found.high) == (2.0, 1.0, 3.0)
    assert (median([7.0]).low, median([7.0]).high) == (7.0, 7.0)


@pytest.mark.parametrize(("n", "k"), [(6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (40, 14)])  # tables of the sign test
def test_which_order_statistics(n, k):
    found = median([float(i) for i in range(1, n + 1)])
    assert (found.low, found.high) == (k, n + 1 - k)
    assert 2 * sum(math.comb(n, i) for i in range(k)) / 2**n <= 0.05


def test_the_median_is_inside_as_often_as_it_says():
    draw = random.Random(3)
    inside = 0
    for _ in range(2000):
        found = median([draw.expovariate(1.0) for _ in range(15)])
        inside += found.low <= math.log(2) <= found.high
    assert inside / 2000 > 0.94


def test_medians_that_were_not_measured_in_pairs():
    found = of_medians([2.0, 2.2, 2.4], [1.0, 1.1])
    assert (found.low, found.high) == pytest.approx((2.0 / 1.1, 2.4))
    draw = random.Random(4)
    inside = 0
    for _ in range(500):
        one, other = ([draw.lognormvariate(0, 0.3) for _ in range(n)] for n in (9, 20))
        found = of_medians(one, other)
        inside += found.low <= 1 <= found.high
    assert inside / 500 > 0.95


def test_ratios_are_of_pairs():
    assert ratio([2.0, 30.0, 2.0], [1.0, 10.0, 4.0]).middle == 2.0
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])
