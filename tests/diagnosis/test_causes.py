"""Planted numbers, and what is blamed for them."""

from __future__ import annotations

import pytest
from watched import USUAL, job, watch

from gradwire.core.errors import ConfigError
from gradwire.diagnosis.causes import account
from gradwire.diagnosis.report import diagnose
from gradwire.diagnosis.watch import Watch

SLOW_LINK = {"seconds": 0.3, "exposed": 0.202}
LATE = {"seconds": 0.25, "forward": 0.18}  # for itself
WAITS = {"seconds": 0.25, "exposed": 0.152}  # for the late one
DATA = {"seconds": 0.2, "data": 0.1}
SCRIPT = {"seconds": 0.2}
TINY = {"bucket_bytes": (4096,) * 200, "bucket_cap_bytes": 1024}


def test_parts_add_up_to_the_step():
    found = account(job(LATE, WAITS, WAITS))
    assert sum(found.parts.values()) == pytest.approx(found.step_seconds) == pytest.approx(0.25)
    assert found.parts["network"] == pytest.approx(USUAL["exposed"])  # of the rank that came last
    assert found.parts["waiting"] == pytest.approx(2 / 3 * 0.15)
    assert found.headroom == pytest.approx(0.25 / 0.248)


@pytest.mark.parametrize(
    "ranks, settings, cause",
    [
        ([{}, {}, {}], {}, "nothing"),
        ([SLOW_LINK] * 3, {}, "network"),
        ([SLOW_LINK] * 3, TINY, "tiny buckets"),
        ([{}] * 3, TINY, "nothing"),  # they cost nothing here
        ([WAITS, LATE, WAITS], {}, "straggler"),
        ([LATE, WAITS], {}, "straggler"),
        ([DATA] * 2, {"loader_workers": 0}, "data loading"),
        ([SCRIPT] * 2, {}, "script"),
        ([{}], {}, "nothing"),
        ([DATA], {}, "data loading"),
    ],
)
def test_the_planted_cause_is_named(ranks, settings, cause):
    assert diagnose(job(*ranks, settings=settings)).cause == cause


def test_of_two_causes_the_more_expensive_one_comes_first_and_the_other_is_told():
    found = diagnose(job(*[{"seconds": 0.4, "exposed": 0.202, "data": 0.101}] * 2, settings={"loader_workers": 2}))
    assert found.cause == "network"
    assert found.also == (
        "Data loading: 25 % of a step is spent waiting for the data loader. Its 2 workers are too few or too slow: "
        "raise num_workers, or make samples cheaper.",
    )


def test_one_rank_whose_data_is_slow_is_a_straggler_and_not_everybodys_data():
    found = diagnose(job({"seconds": 0.2, "data": 0.101}, {"seconds": 0.2, "exposed": 0.102}))
    assert found.cause == "straggler"
    assert found.account.lag.rank == 0
    assert found.account.lag.part == "the data loader"
    assert found.also == ()


def test_slow_data_of_all_is_told_beside_a_rank_that_computes_slowly():
    late = {"seconds": 0.3, "data": 0.08, "forward": 0.13}
    found = account(job(late, {"seconds": 0.3, "data": 0.08, "exposed": 0.102}))
    assert [(c.kind, round(c.seconds, 3)) for c in found.causes] == [("straggler", 0.1), ("data loading", 0.08)]


def test_ranks_that_take_turns_are_no_straggler():
    turns = [[LATE, WAITS] * 5, [WAITS, LATE] * 5]
    found = diagnose([watch(r, 2, steps) for r, steps in enumerate(turns)])
    assert found.cause == "uneven ranks"
    assert found.account.lag.share == 0.5


def test_an_evaluation_between_two_steps_does_not_count_and_stalls_of_the_loader_do():
    evaluated = [{}] * 9 + [{"seconds": 60.0}]
    assert diagnose([watch(r, 2, evaluated) for r in range(2)]).cause == "nothing"
    stalls = [{}, {}, {"seconds": 0.3, "data": 0.201}, {}] * 3
    assert diagnose([watch(r, 2, stalls) for r in range(2)]).cause == "data loading"


def test_verdicts_say_what_to_do():
    assert diagnose(job(WAITS, LATE)).verdict == (
        "Rank 1 is late: it takes 248 ms of a step for itself, the others 98 ms, and all wait for it, 60 % of a step. "
        "It loses most in the forward pass: look at what this rank's machine and data do differently. Do not compress: "
        "a free exchange would make a step 1.01 times as fast, at most."
    )
    assert diagnose(job({}, {})).verdict == (
        "Nothing is wrong: 90 % of a step is compute. Do not compress: a free exchange would make a step 1.02 times as "
        "fast, at most."
    )
    assert diagnose(job(SLOW_LINK, SLOW_LINK, settings=TINY)).verdict == (
        "Tiny buckets: gradients go in 200 messages of 4.1 kB, and 67 % of a step is spent waiting for them. Leave "
        "bucket_cap_mb at its default (25), and look again."
    )
    assert diagnose(job(DATA, DATA, settings={"loader_workers": 0})).verdict.startswith(
        "Data loading: 50 % of a step is spent waiting for the data loader. It has no workers: set num_workers, "
    )


def test_too_little_was_seen():
    assert diagnose([]).verdict == (
        "No answer: no Python process of the job wrapped a model in DistributedDataParallel and trained it to its end "
        "here."
    )
    few = diagnose([watch(0, 2, [{}] * 10), watch(1, 2, [{}] * 2)])
    assert (few.cause, few.account) == ("unknown", None)
    assert few.verdict == (
        "No answer: 2 steps could be measured before the job ended, and 3 are the least; let it run longer. A step "
        "ends with optimizer.step() of a torch.optim optimizer."
    )
    assert diagnose([], problems=["ModuleNotFoundError: No module named 'gradwire'"]).verdict == (
        "No answer: the ranks could not be watched (ModuleNotFoundError: No module named 'gradwire')."
    )
    with pytest.raises(ConfigError, match="3 steps are the least that says anything"):
        account([watch(steps=[{}])])


def test_remarks_tell_what_the_answer_rests_on():
    two = [watch(r, 4, [{}] * 4, micro_batches=8, models=2) for r in (1, 2)]
    assert diagnose(two).remarks[:4] == (
        "Of 4 ranks, these were heard of: 1, 2. What looks like the network may be a rank that is late and was not "
        "heard of; rank 0's machine has the answer of all.",
        "4 steps were measured, 10 were wanted.",
        "A step has 8 micro-batches; all are taken to compute like the last one.",
        "2 models were wrapped in DDP; the first one, Net, was watched.",
    )


def test_a_hook_of_the_users_own_may_hide_its_waits():
    told = "What the hook mine waits for in the backward pass counts as compute."
    assert told in diagnose(job({}, {}, settings={"hook": "mine"})).remarks
    for hook in (None, "fp16_compress_hook", "compress_hook"):
        assert not any("counts as compute" in r for r in diagnose(job({}, {}, settings={"hook": hook})).remarks)


def test_a_watch_goes_through_json():
    one = watch(settings={"environment": {"NCCL_DEBUG": "INFO"}, "interfaces": {"eth0": 1e10}, "hook": "fp16"})
    assert Watch.from_json(one.to_json()) == one


def test_as_text_it_is_the_verdict_and_what_led_to_it():
    text = str(diagnose(job(DATA, DATA, settings={"loader_workers": 0}))).splitlines()
    assert text[0].startswith("Data loading: 50 %")
    assert text[1].startswith("A step takes 200 ms: data 100 ms, compute 90 ms, ")
    assert text[2] == "Setting: the data loader has num_workers=0: samples are made while nothing else happens."
