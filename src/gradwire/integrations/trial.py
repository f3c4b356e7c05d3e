"""What the autopilot decides, and by which numbers. Without torch, without a clock and without other ranks.

A `Pilot` says whose turn it is, for how many steps. At the end of each turn it is told the time of a step, a number
that all ranks have exchanged, so all of them decide alike.

1. Trial. Contestants take turns, A B C A B C, so that whatever drifts meets all alike. Of each turn the first steps are
   thrown away. A codec that was a quarter slower than the fastest in both of the first two rounds is out. Turns are
   then twice as long, and who is beaten by the choice of the moment is out; plain DDP only if it was a quarter slower
   in three rounds.
2. Choice. One contestant beats another if it was surely faster beside it: by more than 2 % in the middle, and in all
   of the 95 % interval of the median ratio (`core/intervals.py`). With fewer than six turns there is no such interval,
   and it must have been 10 % faster in every turn. Of those that beat plain DDP the choice is the simplest that the
   fastest of them does not beat; if there is none, it is plain DDP. From the third round on the trial ends as soon as
   everybody else is beaten or, by its interval, not more than 5 % faster; after fifteen in any case.
3. Watch. The choice runs in windows of 25 steps. If three in a row take 15 % more or less than in the trial, there
   is a new one. If it ends as before, six windows must differ before the next one, then twelve, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.core.baselines import FP32, WIN
from gradwire.core.intervals import Interval, median, ratio
from gradwire.core.units import format_milliseconds

COUNTED = 5  # steps of a turn; twice as many once the slow ones are out
SETTLING = 10  # steps at the beginning of a job: data loaders start, DDP orders its buckets
ROUNDS, MOST_ROUNDS = 3, 15
OUT, SCREENING = 1.25, 2  # times the fastest, in all turns: out after so many rounds
PAYS = 1.02  # times as fast, to be taken in place of something simpler
CLEAR, FEW = 1.1, 6  # times as fast in every turn, where there are fewer of them
WINDOW = 25  # steps
CHANGED = 1.15  # times as slow or as fast as in the trial
PATIENCE, MOST_PATIENCE = 3, 384  # windows in a row
TRIAL, WATCH = "trial", "watch"


@dataclass(frozen=True)
class Turn:
    """So many steps of one contestant, of which the first are not counted."""

    codec: str
    thrown_away: int
    counted: int

    @property
    def steps(self) -> int:
        """All of them."""
        return self.thrown_away + self.counted


@dataclass
class Trial:
    """Rounds of turns. Contestants come with the simplest first, which is plain DDP.

    >>> trial = Trial(("none", "bf16"))
    >>> for seconds in (1.0, 0.6, 1.1, 0.6, 1.0, 0.5):
    ...     trial.report(seconds)
    >>> trial.next, trial.winner
    (None, 'bf16')
    """

    contestants: tuple[str, ...]
    seconds: dict[str, list[float]] = field(init=False)  # of a step, one a turn
    _left: list[str] = field(init=False)  # of this round
    _running: list[str] = field(init=False)  # those not out

    def __post_init__(self) -> None:
        self.seconds = {name: [] for name in self.contestants}
        self._running, self._left = list(self.contestants), list(self.contestants)

    @property
    def screening(self) -> bool:
        """Whether these are the first rounds, in which nobody is out."""
        return min(map(len, self.seconds.values())) < SCREENING

    @property
    def next(self) -> str | None:
        """Whose turn it is; None: all is decided."""
        return self._left[0] if self._left else None

    def report(self, seconds: float) -> None:
        """The turn is over, and a step of it took so long."""
        self.seconds[self._left.pop(0)].append(seconds)
        if not self._left:
            winner = self.winner
            self._running = [name for name in self._running if not self._out(name, winner)]
            self._left = [] if self._decided else list(self._running)

    @property
    def plain(self) -> str:
        """The simplest of all, with which everything else is compared."""
        return self.contestants[0]

    @property
    def winner(self) -> str:
        """Of those that beat plain DDP, the simplest that the fastest does not beat."""
        able = [name for name in self._running if self._beats(name, self.plain)]
        if not able:
            return self.plain
        best = self._fastest(able)
        return next(name for name in able if not self._beats(best, name))

    def _fastest(self, names: Sequence[str]) -> str:
        return min(names, key=lambda name: median(self.seconds[name]).middle)

    @property
    def medians(self) -> dict[str, float]:
        """Seconds of a step: the winner's, and the others' by how they compare with it in the turns of both."""
        winner = self.winner
        own = median(self.seconds[winner]).middle
        return {name: own * self._over(name, winner).middle for name, found in self.seconds.items() if found}

    @property
    def _rounds(self) -> int:
        return max(map(len, self.seconds.values()))

    @property
    def _decided(self) -> bool:
        winner = self.winner
        near = all(self._beats(winner, n) or self._over(n, winner).low >= 1 / WIN for n in self._running if n != winner)
        return len(self._running) == 1 or self._rounds >= MOST_ROUNDS or (self._rounds >= ROUNDS and near)

    def _out(self, name: str, winner: str) -> bool:
        slow = not self.screening and self._over(name, self._fastest(self._running)).low > OUT
        beaten = self._rounds >= ROUNDS and self._beats(winner, name)
        return slow and beaten if name == self.plain else slow or beaten

    def _over(self, one: str, other: str) -> Interval:
        """Seconds of one over those of another, turn by turn."""
        turns = min(len(self.seconds[one]), len(self.seconds[other]))
        return ratio(self.seconds[one][:turns], self.seconds[other][:turns])

    def _beats(self, one: str, other: str) -> bool:
        found = self._over(other, one)
        return found.middle > PAYS and found.low > (CLEAR if self._rounds < FEW else 1)


class Pilot:
    """Tries, chooses, watches and tries again.

    Args:
        contestants: plain DDP (the codec `none`), then codecs, the simplest first.
        thrown_away: steps of a turn that do not count: what is compiled, allocated or captured comes first.

    >>> pilot = Pilot(("none", "bf16"), thrown_away=2)
    >>> pilot.turn
    Turn(codec='none', thrown_away=12, counted=5)
    >>> said = [pilot.report(0.5 if pilot.turn.codec == "bf16" else 1.0) for _ in range(6)]
    >>> said[-1]
    'bf16 takes 500 ms a step, against 1000 ms of plain DDP; found on this job in 3 rounds'
    >>> pilot.phase, pilot.choice, pilot.turn
    ('watch', 'bf16', Turn(codec='bf16', thrown_away=0, counted=25))
    """

    def __init__(self, contestants: Sequence[str], thrown_away: int) -> None:
        assert contestants[0] == FP32, "plain DDP is the simplest"
        self.contestants, self.thrown_away = tuple(contestants), thrown_away
        self.choice, self.reference = FP32, 0.0  # and the seconds of its steps in the trial
        self.medians: dict[str, float] = {}  # of the last trial
        self.trials = 0  # that have ended
        self.patience, self.odd_windows = PATIENCE, 0
        self.trial: Trial | None = Trial(self.contestants) if len(contestants) > 1 else None

    @property
    def phase(self) -> str:
        """A trial is on, or its choice."""
        return WATCH if self.trial is None else TRIAL

    @property
    def turn(self) -> Turn:
        """What comes next."""
        if self.trial is None:
            return Turn(self.choice, 0, WINDOW)
        assert self.trial.next is not None, "a trial that has ended is put away"
        first = not self.trials and not any(self.trial.seconds.values())
        counted = COUNTED if self.trial.screening else 2 * COUNTED
        return Turn(self.trial.next, self.thrown_away + SETTLING * first, counted)

    def report(self, seconds: float) -> str | None:
        """The turn is over; returns what there is to say, where something was decided.

        Args:
            seconds: of a step in this turn, the same number on all ranks.
        """
        if self.trial is not None:
            self.trial.report(seconds)
            return self._choose(self.trial) if self.trial.next is None else None
        return self._watch(seconds)

    def _choose(self, trial: Trial) -> str:
        before, self.choice = self.choice, trial.winner
        self.medians, self.trial = trial.medians, None
        self.reference = self.medians[self.choice]
        again = self.trials > 0 and before == self.choice
        self.patience = min(2 * self.patience, MOST_PATIENCE) if again else PATIENCE
        self.trials, self.odd_windows = self.trials + 1, 0
        return _sentence(self.choice, self.medians, max(map(len, trial.seconds.values())))

    def _watch(self, seconds: float) -> str | None:
        if len(self.contestants) == 1:
            return None
        same = self.reference / CHANGED <= seconds <= self.reference * CHANGED
        self.odd_windows = 0 if same else self.odd_windows + 1
        if self.odd_windows < self.patience:
            return None
        self.trial = Trial(self.contestants)
        was, now = format_milliseconds(self.reference), format_milliseconds(seconds)
        return f"a step took {was} and now takes {now}; all are tried again"

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to keep the choice. A trial that is on starts anew there."""
        return {
            "choice": self.choice,
            "reference": self.reference,
            "medians": dict(self.medians),
            "trials": self.trials,
            "patience": self.patience,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue with the choice, if it was made and is still allowed; else try.

        Args:
            saved: what `state_dict` returned.
        """
        known = saved["trials"] > 0 and saved["choice"] in self.contestants
        self.odd_windows = 0
        if known:
            self.choice, self.reference = saved["choice"], saved["reference"]
            self.medians, self.patience = dict(saved["medians"]), saved["patience"]
            self.trials = saved["trials"]
        else:
            self.choice, self.trials, self.patience, self.medians = FP32, 0, PATIENCE, {}
        self.trial = None if known or len(self.contestants) == 1 else Trial(self.contestants)


def _sentence(choice: str, medians: Mapping[str, float], rounds: int) -> str:
    """The choice, and what it was measured against."""
    shown = {name: format_milliseconds(seconds) for name, seconds in medians.items()}
    others = ", ".join(f"{name} {shown[name]}" for name in medians if name not in (choice, FP32))
    if choice == FP32:
        return f"plain DDP stays, at {shown[FP32]} a step: nothing safe is surely faster ({others})"
    beside = f" ({others})" if others else ""
    return (
        f"{choice} takes {shown[choice]} a step, against {shown[FP32]} of plain DDP{beside}; found on this job in "
        f"{rounds} rounds"
    )
