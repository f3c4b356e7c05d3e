"""Programs combined: which exchanges travel together, and that each program gets its own answers."""

from __future__ import annotations

import pytest
import torch

from gradwire.collectives import local
from gradwire.collectives.meter import Meter
from gradwire.core.exchange import Gather, Max, Payload, Sum, Team, once, side_by_side, together, within


def one(value):
    return torch.tensor([float(value)])


def adding(*rounds):
    """Sums its values one round after the other; a tuple travels in one. Returns all answers, flat."""
    answers = []
    for values in rounds:
        if isinstance(values, tuple):
            answers += [float(a) for a in (yield tuple(Sum(one(v)) for v in values))]
        else:
            answers.append(float((yield Sum(one(values)))))
    return answers


def drive(program):
    """Answer each exchange by ten times what was handed in; the requests of each round, and the result."""
    rounds, answer = [], None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return rounds, done.value
        batch = request if isinstance(request, tuple) else (request,)
        rounds.append([float(e.tensor) for e in batch])
        answers = [10 * e.tensor for e in batch]
        answer = tuple(answers) if isinstance(request, tuple) else answers[0]


# ---------------------------------------------------------------- side by side


@pytest.mark.parametrize(
    "programs, rounds",
    [
        ([[1]], [[1]]),
        ([[1, 2, 3]], [[1], [2], [3]]),
        ([[1], [2]], [[1, 2]]),
        ([[1, 2], [3]], [[1, 3], [2]]),
        ([[1], [2, 3, 4], [5, 6]], [[1, 2, 5], [3, 6], [4]]),
        ([[(1, 2), 3], [4, (5, 6)]], [[1, 2, 4], [3, 5, 6]]),
        ([[], [1]], [[1]]),
        ([[(1,)], [2]], [[1, 2]]),
        ([[], []], []),
        ([[]], []),
        ([], []),
    ],
)
def test_rounds_are_shared_and_answers_find_their_program(programs, rounds):
    found, results = drive(side_by_side([adding(*p) for p in programs]))
    assert found == rounds
    flat = [[v for values in p for v in (values if isinstance(values, tuple) else (values,))] for p in programs]
    assert results == [[10.0 * v for v in values] for values in flat]


def test_exchanges_of_different_kinds_keep_apart():
    def gathering(value):
        rows = yield Gather(Payload(torch.tensor([[value]], dtype=torch.uint8)))
        return rows.data.flatten().tolist()

    def largest(value):
        return float((yield Max(one(value))))

    programs = [side_by_side([gathering(10 + r), largest(r), adding(r, 1)]) for r in range(3)]
    meters = [Meter() for _ in programs]
    results = local.run(programs, meters)
    assert results == 3 * [[[10, 11, 12], 2.0, [3.0, 3.0]]]
    assert [m.exchanges for m in meters] == [4, 4, 4]


def test_a_failing_program_is_not_hidden():
    def failing():
        yield Sum(one(1))
        raise ArithmeticError("in the second round")

    with pytest.raises(ArithmeticError, match="in the second round"):
        drive(side_by_side([adding(1, 2, 3), failing()]))


def test_all_exchanges_of_a_team_are_marked():
    team = Team(range(1, 3))
    program = within(side_by_side([adding(1, 2), adding((3, 4))]), team)
    request = next(program)
    assert [(float(e.tensor), e.team) for e in request] == [(1, team), (3, team), (4, team)]
    assert program.send(tuple(one(0) for _ in request))[0].team == team


# ---------------------------------------------------------------- together


@pytest.mark.parametrize(
    "main, extras, rounds",
    [
        ([1, 2], [], [[1], [2]]),
        ([1, 2], [7], [[1, 7], [2]]),
        ([(1, 2), 3], [7, 8], [[1, 2, 7, 8], [3]]),
        ([], [7, 8], [[7, 8]]),
        ([], [], []),
    ],
)
def test_extras_travel_with_the_first_exchange(main, extras, rounds):
    found, (result, answers) = drive(together(adding(*main), tuple(Sum(one(v)) for v in extras)))
    assert found == rounds
    assert result == [10.0 * v for values in main for v in (values if isinstance(values, tuple) else (values,))]
    assert [float(a) for a in answers] == [10.0 * v for v in extras]


def test_extras_travel_with_programs_side_by_side():
    found, (results, answers) = drive(together(side_by_side([adding(1, 2), adding(3)]), (Sum(one(7)),)))
    assert found == [[1, 3, 7], [2]]
    assert (results, float(answers[0])) == ([[10.0, 20.0], [30.0]], 70.0)


# ---------------------------------------------------------------- computed once


def test_what_all_workers_make_of_an_answer_is_computed_once_where_they_share():
    made = []

    def reading(rank):
        found = []
        for start in (1, 10):
            total = yield Sum(one(start + rank))
            found.append(once(total, lambda: made.append("sum") or float(total)))  # noqa: B023
            found.append(once(total, lambda: made.append("half") or float(total) / 2))  # noqa: B023
        return found

    for share, times in ((True, 1), (False, 3)):
        made.clear()
        results = local.run([reading(r) for r in range(3)], [Meter() for _ in range(3)], share=share)
        assert results == 3 * [[6.0, 3.0, 33.0, 16.5]]
        assert made.count("sum") == made.count("half") == 2 * times
