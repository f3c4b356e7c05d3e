"""The checks of `gradwire check` can fail: each catches the bug it is there for, planted in a codec that passes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import gradwire
from gradwire import conformance
from gradwire.kernels import rows
from gradwire.kernels.random import uniform

CLAIMS = gradwire.Traits(combine=gradwire.Combine.GATHER, memory="error_feedback", delta=0.0)


@dataclass(frozen=True)
class Right(gradwire.Codec):
    """Round to 127 steps of the largest magnitude."""

    name: ClassVar[str] = "right"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "none"
    traits = CLAIMS

    def encode(self, x, rng):
        step = self.step(x)
        codes = self.rounded(x / torch.where(step > 0, step, 1), rng).clamp(-127, 127)
        return gradwire.Payload(rows.join(step, codes.to(torch.int8)))

    def step(self, x):
        return x.abs().amax(1, keepdim=True) / 127

    def rounded(self, x, rng):
        return x.round()

    def decode(self, payload, numel, rng):
        step, start = rows.take(payload.data, 0, 1, torch.float32)
        return rows.take(payload.data, start, numel, torch.int8)[0] * step

    def payload_bytes(self, numel):
        return numel + 4


def encodes(change):
    """`encode`, of what `change` makes of the gradient."""
    return {"encode": lambda self, x, rng: Right.encode(self, change(x), rng)}


def decodes(change):
    """`decode`, and what `change` makes of the result."""
    return {"decode": lambda self, payload, numel, rng: change(Right.decode(self, payload, numel, rng), rng)}


def claims(**changed):
    return {"traits": replace(CLAIMS, **changed)}


def noisy(source):
    """Stochastic rounding by numbers of a kind."""
    draw = {"rounded": lambda self, x, rng: (x + uniform(source(rng), x.shape, x.device)).floor()}
    return draw | claims(stochastic=True)


def padded(numel):
    return 5 * numel + 4


KEPT = {}
TURN = itertools.count()


def from_last_time(x):
    """Keeps something in the module."""
    last = KEPT.get(x.shape, 0)
    KEPT[x.shape] = x.clone()
    return x + 0.01 * last


PLANTED = [
    ("keeps_its_contract", {"payload_bytes": lambda self, numel: numel + 2}),
    ("says_what_it_is", {"family": "rounding"}),
    ("says_what_it_is", {"__doc__": None}),
    ("shape_and_dtype_come_back", encodes(lambda x: x.view(-1, 2).view(x.shape) if x.shape[1] % 2 else x)),
    ("finite_stays_finite", {"step": lambda self, x: 1 / (1 / Right.step(self, x))} | decodes(lambda y, rng: y / 0)),
    ("zero_comes_out_as_zero", {"step": lambda self, x: Right.step(self, x) + 1, "rounded": lambda self, x, r: x + 1}),
    ("non_finite_input_is_seen_by_all_and_remembered_by_none", decodes(lambda y, rng: y.nan_to_num())),
    ("input_and_global_randomness_are_left_alone", encodes(lambda x: x + 0 * torch.rand(1))),
    ("input_and_global_randomness_are_left_alone", encodes(lambda x: x.neg_()) | claims(memory="none")),
    ("same_seed_same_result_and_steps_differ_if_random", encodes(lambda x: x + 0.1 * torch.rand_like(x))),
    ("same_seed_same_result_and_steps_differ_if_random", claims(stochastic=True)),
    ("workers_round_independently", noisy(lambda rng: rng.shared("round"))),
    ("a_row_does_not_depend_on_others", {"step": lambda self, x: (x.abs().amax() / 127).expand(x.shape[0], 1)}),
    ("sums_of_payloads_decode_to_sums", claims(combine=gradwire.Combine.SUM)),
    ("payload_bytes_is_the_payload", {"payload_bytes": lambda self, numel: numel + 4 + (numel == 7)}),
    ("no_step_depends_on_the_data_in_its_control_flow", encodes(lambda x: x if x.sum().item() < 9e9 else 0 * x)),
    (
        "a_large_matrix_gets_smaller_unless_nothing_is_lost",
        {
            "encode": lambda self, x, rng: gradwire.Payload(
                rows.join(Right.encode(self, x, rng).data, x.new_zeros(x.shape))
            ),
            "payload_bytes": lambda self, numel: padded(numel),
        },
    ),
    ("unbiased_and_within_its_variance", claims(unbiased=True, omega=1.0)),
    ("contracts_as_it_says", claims(delta=1.0)),
    ("sparse_codecs_send_values_as_they_are_and_nothing_else", claims(sparse=True)),
    ("elements_do_not_depend_on_each_other", claims(elementwise=True)),
    ("a_bad_element_shows_wherever_it_is", encodes(lambda x: x.nan_to_num()) | claims(propagates_nonfinite=True)),
    ("sign_flips_with_the_gradient", {"rounded": lambda self, x, rng: x.floor()}),
    ("result_scales_with_the_gradient", {"step": lambda self, x: torch.full_like(x[:, :1], 0.1)}),
    (
        "workers_with_the_same_gradient_get_what_one_alone_would",
        {"combine": lambda self, p, n, r, groups=1: Right.decode(self, p, n, r).view(groups, -1, n).sum(1)},
    ),
    ("the_average_over_many_steps_is_the_mean", decodes(lambda y, rng: 0.9 * y) | claims(unbiased=True, omega=0.0)),
    (
        "replicas_agree_bit_for_bit",
        {"combine_to": lambda self, p, t, r, factor=1.0: self._written(t, self.combine(p, t.numel, r) + next(TURN))},
    ),
    ("error_feedback_loses_nothing_over_many_steps", {"encode_own": lambda self, x, r: (self.encode(x, r), x)}),
    ("memory_does_not_grow_without_bound", decodes(lambda y, rng: 3 * y)),
    ("state_survives_being_saved", encodes(from_last_time)),
    (
        "ranks_apart_compute_what_the_rows_of_one_engine_do",
        encodes(lambda x: x + x.shape[0] / 100),
    ),
    ("the_fast_form_is_the_simple_form", {"encode_own": lambda self, x, r: (self.encode(x, r), 0.9 * x)}),
]  # fmt: skip


def codec_with(bug):
    body = {"__doc__": Right.__doc__, "__module__": __name__} | bug
    return dataclass(frozen=True)(type("Wrong", (Right,), body))()


def problems(codec, name):
    found = [case.problem(codec) for case in conformance.cases(codec) if case.check.name == name]
    assert found, f"{name} is none of its checks"
    return [problem for problem in found if problem is not None]


@pytest.mark.parametrize("name, bug", PLANTED, ids=[name for name, _ in PLANTED])
def test_a_planted_bug_is_caught_and_told(name, bug):
    KEPT.clear()
    found = problems(codec_with(bug), name)
    assert found
    assert all(problem.sentence and problem.remedy for problem in found)


def test_the_codec_without_bugs_passes():
    assert all(outcome.passed for outcome in conformance.run(Right()))


SELDOM = {
    "spec_and_config_build_the_same_codec_again",  # below
    "parameters_cannot_be_changed",
    "strides_do_not_matter",  # the engine hands out contiguous rows: for codecs that look at their source
    "traced_bytes_are_the_bytes_that_leave",
    "without_shards_they_are_refused",
    "regrouping_the_units_keeps_what_is_owed",
}


def test_every_other_check_has_its_bug():
    assert {name for name, _ in PLANTED} == {check.name for check in conformance.CHECKS} - SELDOM


class Loose(Right):
    """No dataclass: an attribute can be set."""


@dataclass(frozen=True)
class Tuples(Right):
    """A parameter that JSON does not know."""

    sizes: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize(
    "codec, name, sentence",
    [
        (Loose(), "parameters_cannot_be_changed", "an attribute of the codec can be set"),
        (Tuples(), "spec_and_config_build_the_same_codec_again",
         "right becomes right(sizes=[1, 2]) when its parameters go through JSON"),
    ],
)  # fmt: skip
def test_codecs_that_are_no_values_are_told(codec, name, sentence):
    assert [problem.sentence for problem in problems(codec, name)] == [sentence]
