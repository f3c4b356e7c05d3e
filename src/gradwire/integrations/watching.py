"""`handle.watch(...)`: who is told what is seen of a training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gradwire.core.errors import ConfigError
from gradwire.integrations.monitor import Listener
from gradwire.integrations.recorder import Recorder
from gradwire.integrations.window import Window
from gradwire.trackers import Tracker, open_tracker

log = logging.getLogger("gradwire")
Told: TypeAlias = Callable[[int, Mapping[str, float]], object]  # a function of a step and values by name
Tracking: TypeAlias = str | Tracker | Told


def listeners(
    lines: bool, tracker: Tracking | None, record: str | Path | None, what: Mapping[str, Any], backend: str
) -> tuple[list[Listener], list[Callable[[], None]]]:
    """Who is told, and what to call at the end.

    Args:
        lines: whether to write a line to the log.
        tracker: a spec, which is opened and closed here, a tracker, or a function of step and values.
        record: the file of records.
        what: set-up of the run, for tracker and record.
        backend: what carries the bytes.
    """
    try:
        json.dumps(what)
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"watch: `about` goes into records, so it must be ready for JSON: {problem}") from problem
    found: list[Listener] = []
    closers: list[Callable[[], None]] = []
    if record is not None:
        found.append(Recorder(record, what, backend))
    if lines:
        found.append(_log)
        if not (log.isEnabledFor(logging.INFO) and log.hasHandlers()):
            log.warning(
                "gradwire: lines about steps have level INFO, which nothing shows yet; "
                "before: logging.basicConfig(level=logging.INFO)"
            )
    if tracker is not None:
        opened = open_tracker(tracker) if isinstance(tracker, str) else tracker
        if isinstance(opened, Tracker):
            opened.config(what)
            found.append(lambda window: opened.log(window.step, window.values))
        elif callable(opened):
            found.append(lambda window: _call(opened, window))
        else:
            raise ConfigError(
                "watch: `tracker` must be a spec such as 'tensorboard:FOLDER', a gradwire tracker, or a function of "
                f"step and values, got {type(tracker).__name__}. For a run that you have open, pass a function: "
                "lambda step, values: run.log(values, step=step)"
            )
        if isinstance(tracker, str) and isinstance(opened, Tracker):
            closers.append(opened.close)
    return found, closers


def _log(window: Window) -> None:
    log.info("gradwire %s", window.sentence)


def _call(told: Told, window: Window) -> None:
    told(window.step, window.values)
