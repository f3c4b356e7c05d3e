"""One training under a controller: who holds the state from epoch to epoch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.adaptive.controller import Controller
from gradwire.adaptive.values import Decision, Observation, Settings, State, Switch
from gradwire.core.errors import ConfigError, StateMismatch


class ControllerRun:
    """One training under a controller: the state, and the log of what was switched.

    The controller itself stays as it is, and may serve other runs at the same time.

    Args:
        controller: what decides.

    Example:
        >>> from gradwire.adaptive import Warmup
        >>> warmup = Warmup("topk(ratio=0.01)", begin=0.1, epochs=1)
        >>> run, other = ControllerRun(warmup), ControllerRun(warmup)
        >>> run.start(["weight"]).levels, other.start(["weight"]).levels
        ({'weight': 'topk(ratio=0.1)'}, {'weight': 'topk(ratio=0.1)'})
        >>> run.end_epoch(Observation(epoch=0, learning_rate=0.1, next_learning_rate=0.1)).levels
        {'weight': 'topk(ratio=0.01)'}
        >>> other.settings.levels
        {'weight': 'topk(ratio=0.1)'}
        >>> [switch.why for switch in run.switches]
        ['the warm-up is over']
    """

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.switches: tuple[Switch, ...] = ()  # all changes so far
        self._state: State | None = None

    @property
    def state(self) -> State:
        """What the controller will be handed with the next observation."""
        if self._state is None:
            raise ConfigError(f"{self.controller.name}: nothing is set yet; call start(parameters) first")
        return self._state

    @property
    def settings(self) -> Settings:
        """What holds now."""
        return self.state.settings

    def start(self, parameters: Sequence[str]) -> Settings:
        """Begin anew. Returns the settings of the first epoch.

        Args:
            parameters: the names of all parameters that are compressed.
        """
        self.switches = ()
        return self._follow(*self.controller.first(parameters))

    def end_epoch(self, seen: Observation) -> Settings:
        """Let the controller decide. Returns the settings of the next epoch.

        Args:
            seen: the epoch that has ended.
        """
        return self._follow(*self.controller.decide(self.state, seen))

    def _follow(self, state: State, decision: Decision) -> Settings:
        for parameter, level in decision.settings.levels.items():
            if level not in self.controller.levels:
                raise ConfigError(
                    f"{self.controller.name}: decided on the level {level!r} for {parameter!r}, which is none of its "
                    f"levels: {', '.join(self.controller.levels)}. Name in `levels` all that it may choose."
                )
        if decision.warning:
            warnings.warn(decision.warning, stacklevel=3)
        self._state = state
        self.switches += decision.switches
        return decision.settings

    def state_dict(self) -> dict[str, Any]:
        """State and log in plain data, the same on all ranks."""
        return {
            "controller": self.controller.spec,
            **self.state.to_json(),
            "switches": [switch.to_json() for switch in self.switches],
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from there. The state of another controller, or of other parameters, is refused.

        Args:
            saved: what `state_dict` returned.
        """
        name, spec, theirs = self.controller.name, self.controller.spec, saved.get("controller")
        if theirs != spec:
            raise StateMismatch(
                f"{name}: the state was saved by controller {theirs!r}, and this one is {spec!r}; "
                "build the controller as it was, or begin anew with start()"
            )
        if self._state is not None and set(saved["levels"]) != set(self.settings.levels):
            odd = sorted(set(saved["levels"]) ^ set(self.settings.levels))
            raise StateMismatch(
                f"{name}: the state is of other parameters; only one side has {', '.join(odd[:3])}"
                f"{' and more' if len(odd) > 3 else ''}. Load it into the same model"
            )
        self._state = State.from_json(saved)
        self.switches = tuple(map(Switch.from_json, saved["switches"]))
