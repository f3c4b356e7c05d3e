"""What the autopilot decides, from step times that a test makes up: no processes, no clock."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping

import pytest

from gradwire.integrations import trial
from gradwire.integrations.trial import Pilot, Trial, Turn

CONTESTANTS = ("none", "cast", "small", "tiny")  # simplest first
Times = Callable[[str], float]


def fixed(**seconds: float) -> Times:
    return lambda codec: seconds[codec]


def noisy(share: float, seed: int, **seconds: float) -> Times:
    """Step times that scatter: a turn's is off by up to `share`."""
    draw = random.Random(seed)
    return lambda codec: seconds[codec] * draw.uniform(1 - share, 1 + share)


def fly(pilot: Pilot, times: Times, turns: int) -> list[tuple[Turn, str | None]]:
    """The turns that were taken, and what was said at their end."""
    found = []
    for _ in range(turns):
        turn = pilot.turn
        found.append((turn, pilot.report(times(turn.codec))))
    return found


def until_chosen(pilot: Pilot, times: Times) -> int:
    """Turns of the trial that is on."""
    for turns in itertools.count():
        if pilot.phase == trial.WATCH:
            return turns
        pilot.report(times(pilot.turn.codec))
    raise AssertionError


# ---------------------------------------------------------------- a trial


def test_contestants_take_turns_one_after_the_other() -> None:
    turns = [turn for turn, _ in fly(Pilot(CONTESTANTS, 2), fixed(none=1.0, cast=0.99, small=0.98, tiny=1.0), 9)]
    assert [turn.codec for turn in turns] == [*CONTESTANTS, *CONTESTANTS, "none"]
    assert [turn.thrown_away for turn in turns] == [12, *(8 * [2])]  # a job's first steps are slow
    assert [turn.counted for turn in turns] == [*(8 * [5]), 10]


def test_the_fastest_is_taken_and_told_with_what_it_was_measured_against() -> None:
    pilot = Pilot(CONTESTANTS, 2)
    said = fly(pilot, fixed(none=0.1, cast=0.06, small=0.05, tiny=0.02), 2 * 4 + 2)
    assert (pilot.choice, pilot.phase, pilot.trials) == ("tiny", trial.WATCH, 1)
    assert [line for _, line in said if line] == [
        "tiny takes 20 ms a step, against 100 ms of plain DDP (cast 60 ms, small 50 ms); found on this job in 3 rounds"
    ]


def test_plain_ddp_stays_where_nothing_pays() -> None:
    pilot = Pilot(CONTESTANTS, 2)
    said = fly(pilot, fixed(none=0.1, cast=0.2, small=0.3, tiny=0.4), 8)  # after two rounds nobody else is left
    assert (pilot.choice, pilot.phase) == ("none", trial.WATCH)
    assert said[-1][1] == (
        "plain DDP stays, at 100 ms a step: nothing safe is surely faster (cast 200 ms, small 300 ms, tiny 400 ms)"
    )


def test_what_is_a_quarter_slower_twice_is_out_and_plain_ddp_after_three_rounds() -> None:
    pilot, unsteady = Pilot(CONTESTANTS, 2), itertools.cycle([0.45, 0.55])
    times = {"none": 1.0, "cast": 0.5, "tiny": 0.7}
    turns = fly(pilot, lambda codec: times.get(codec) or next(unsteady), 13)
    assert [turn.codec for turn, _ in turns[8:]] == ["none", "cast", "small", "cast", "small"]
    assert until_chosen(pilot, lambda codec: times.get(codec) or next(unsteady)) > 0
    assert pilot.choice == "cast"


def test_one_slow_turn_puts_nobody_out() -> None:
    found = Trial(("none", "cast"))
    for seconds in (1.0, 2.0, 1.0, 0.5, 1.0, 0.5):
        found.report(seconds)
    assert found.next == "none"  # not decided either


@pytest.mark.parametrize(
    "seconds, choice",
    [
        ({"none": 1.0, "cast": 0.96}, "none"),  # no 5 %: not worth more rounds
        ({"none": 1.0, "cast": 0.94}, "cast"),
        ({"none": 1.0, "cast": 0.5, "small": 0.495, "tiny": 0.51}, "cast"),
        ({"none": 1.0, "cast": 0.5, "small": 0.4, "tiny": 0.398}, "small"),
    ],
)
def test_a_small_difference_goes_to_the_simpler(seconds: Mapping[str, float], choice: str) -> None:
    pilot = Pilot(list(seconds), 2)
    until_chosen(pilot, lambda codec: seconds[codec])
    assert pilot.choice == choice
    assert len(pilot.medians) == len(seconds)


def test_a_difference_inside_the_noise_is_none() -> None:
    """The codec's median is 8 % lower, but in every third turn it was slower: after fifteen rounds plain DDP stays."""
    pilot = Pilot(("none", "cast"), 2)
    for turn in range(15):
        assert pilot.phase == trial.TRIAL
        pilot.report(1.0)
        pilot.report(1.1 if turn % 3 == 1 else 0.92)
    assert (pilot.phase, pilot.choice) == (trial.WATCH, "none")


def test_more_rounds_make_sure_of_what_one_slow_turn_left_open() -> None:
    pilot = Pilot(("none", "cast"), 2)
    times = itertools.chain([0.92, 1.1], itertools.repeat(0.92))
    assert until_chosen(pilot, lambda codec: 1.0 if codec == "none" else next(times)) == 2 * 9
    assert pilot.choice == "cast"


def test_what_is_chosen_beats_plain_ddp_itself() -> None:
    """The fastest is too unsteady to be sure of; the second is not."""
    pilot = Pilot(("none", "cast", "tiny"), 2)
    tiny = itertools.cycle([0.8, 0.82, 1.1])
    until_chosen(pilot, lambda codec: {"none": 1.0, "cast": 0.9}.get(codec) or next(tiny))
    assert pilot.choice == "cast"


@pytest.mark.parametrize("seed", range(20))
def test_with_noise_the_choice_is_near_the_best_and_never_slower_than_plain_ddp(seed: int) -> None:
    truth = {"none": 1.0, "cast": 0.95, "small": 0.8, "tiny": 0.78}
    pilot = Pilot(CONTESTANTS, 2)
    until_chosen(pilot, noisy(0.03, seed, **truth))
    assert truth[pilot.choice] <= 1.05 * min(truth.values())
    worse = {"none": 1.0, "cast": 1.04, "small": 1.1, "tiny": 1.5}
    pilot = Pilot(CONTESTANTS, 2)
    until_chosen(pilot, noisy(0.03, seed, **worse))
    assert pilot.choice == "none"


def test_a_trial_ends() -> None:
    draw = random.Random(0)
    pilot = Pilot(CONTESTANTS, 2)
    assert until_chosen(pilot, lambda _: draw.uniform(0.5, 1.5)) <= trial.MOST_ROUNDS * len(CONTESTANTS)


def test_alone_plain_ddp_is_not_tried() -> None:
    pilot = Pilot(("none",), 2)
    times = iter([1.0, *(9 * [9.0])])
    assert {said for _, said in fly(pilot, lambda _: next(times), 10)} == {None}
    assert (pilot.choice, pilot.phase, pilot.trials) == ("none", trial.WATCH, 0)


# ---------------------------------------------------------------- a watch


def chosen(**seconds: float) -> Pilot:
    pilot = Pilot(("none", "cast"), 2)
    until_chosen(pilot, fixed(**seconds))
    return pilot


@pytest.mark.parametrize("factor", [1.3, 0.7])
def test_a_change_that_lasts_leads_to_a_new_trial(factor: float) -> None:
    pilot = chosen(none=1.0, cast=0.5)
    assert pilot.turn == Turn("cast", 0, 25)
    said = fly(pilot, lambda _: 0.5 * factor, 3)
    assert [line for _, line in said] == [
        None,
        None,
        f"a step took 500 ms and now takes {500 * factor:.0f} ms; all are tried again",
    ]
    assert pilot.phase == trial.TRIAL
    assert pilot.turn == Turn("none", 2, 5)  # the job has long begun
    until_chosen(pilot, fixed(none=0.4, cast=0.5))
    assert (pilot.choice, pilot.trials) == ("none", 2)


def test_a_change_that_passes_does_not() -> None:
    pilot = chosen(none=1.0, cast=0.5)
    for seconds in (0.5, 0.9, 0.9, 0.55, 0.9, 0.9, 0.45):
        assert pilot.report(seconds) is None
    assert pilot.phase == trial.WATCH


def test_trials_that_change_nothing_become_rarer() -> None:
    pilot = chosen(none=1.0, cast=0.5)
    waited = []
    for _ in range(6):
        odd = pilot.reference * 2
        waited.append(next(i for i in itertools.count(1) if pilot.report(odd) is not None))
        until_chosen(pilot, fixed(none=1.0, cast=0.5))
    assert waited == [3, 6, 12, 24, 48, 96]
    while pilot.phase == trial.WATCH:
        pilot.report(9.0)
    until_chosen(pilot, fixed(none=0.5, cast=1.0))
    assert (pilot.choice, pilot.patience) == ("none", 3)


# ---------------------------------------------------------------- saved and continued


def test_a_resumed_pilot_keeps_its_choice() -> None:
    pilot = chosen(none=1.0, cast=0.5)
    saved = json.loads(json.dumps(pilot.state_dict()))
    resumed = Pilot(("none", "cast"), 2)
    resumed.load_state_dict(saved)
    assert resumed.turn == Turn("cast", 0, 25)
    assert resumed.state_dict() == pilot.state_dict()
    assert [line for _, line in fly(resumed, lambda _: 1.0, 3)][-1] is not None  # and its reference


def test_a_pilot_saved_in_a_later_trial_goes_on_with_the_choice_before() -> None:
    pilot = chosen(none=1.0, cast=0.5)
    fly(pilot, lambda _: 2.0, 4)
    assert pilot.phase == trial.TRIAL
    resumed = Pilot(("none", "cast"), 2)
    resumed.load_state_dict(pilot.state_dict())
    assert (resumed.phase, resumed.choice) == (trial.WATCH, "cast")


def test_a_pilot_saved_before_any_choice_or_with_one_that_is_no_longer_safe_tries() -> None:
    resumed = Pilot(("none", "cast"), 2)
    resumed.load_state_dict(Pilot(("none", "cast"), 2).state_dict())
    assert (resumed.phase, resumed.choice) == (trial.TRIAL, "none")
    resumed = Pilot(("none", "small"), 2)
    resumed.load_state_dict(chosen(none=1.0, cast=0.5).state_dict())
    assert (resumed.phase, resumed.choice, resumed.turn.codec) == (trial.TRIAL, "none", "none")


def test_times_that_are_told_are_of_turns_side_by_side():
    trial = Trial(("none", "bf16"))
    for slow in (1.0, 1.0, 1.0):
        trial.report(2.0 * slow)
        trial.report(1.0 * slow)
    assert trial.winner == "bf16"
    trial.seconds["bf16"] += 4 * [3.0]  # turns that plain DDP no longer had, on a machine that became slow
    assert trial.medians == {"none": 6.0, "bf16": 3.0}
