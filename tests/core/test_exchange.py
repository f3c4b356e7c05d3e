"""Programs combined: which exchanges travel together, and that each program gets its own answers."""

from __future__ import annotations

import pytest
import torch

from gradwire.collectives import local
from gradwire.collectives.meter import Meter
from gradwire.conformance import lockstep
from gradwire.core.exchange import Gather, Max, Payload, Sum, Team, side_by_side, together, within


def one(*values):
    """A row of one element for each worker."""
    return torch.tensor([[float(v)] for v in values])


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


def gathering(*values):
    rows = yield Gather(Payload(torch.tensor(values, dtype=torch.uint8)[:, None]))
    return rows.data.flatten().tolist()


def largest(*values):
    return float((yield Max(one(*values))))


def summing(*rounds):
    found = []
    for values in rounds:
        found.append(float((yield Sum(one(*values)))))
    return found


def test_exchanges_of_different_kinds_keep_apart():
    """Three workers, as the rows of one program and as three programs of one row."""
    program = side_by_side([gathering(10, 11, 12), largest(0, 1, 2), summing((0, 1, 2), (1, 1, 1))])
    meter = Meter()
    assert local.run(program, 3, meter) == [[10, 11, 12], 2.0, [3.0, 3.0]]
    assert meter.exchanges == 4
    programs = [side_by_side([gathering(10 + r), largest(r), summing((r,), (1,))]) for r in range(3)]
    meters = [Meter() for _ in programs]
    assert lockstep.run(programs, meters) == 3 * [[[10, 11, 12], 2.0, [3.0, 3.0]]]
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
