"""Several runs of a study at a time, each in a process of its own: for a GPU that one run leaves half idle.

Processes take the next run from a queue and hand back records, which this process writes down as they come. A run that
fails is told at the end; the others go on.
"""

from __future__ import annotations

import multiprocessing
import queue
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.core import records
from gradwire.core.errors import LaunchFailed
from gradwire.core.records import Record
from gradwire.core.registry import Check
from gradwire.laboratory.bench.accuracy import Study
from gradwire.laboratory.bench.training import History, Plan

POLL = 0.5  # seconds between looks at whether a process has died
Message = tuple[str, Plan, Any]


def run(
    study: Study,
    jobs: int,
    path: Path | None = None,
    on_start: Callable[[Plan, bool], None] = lambda plan, runs: None,
    on_progress: Callable[[Plan, History], None] = lambda plan, history: None,
) -> Iterator[Record]:
    """As `Study.run`, in the order in which runs end."""
    Check("bench accuracy").integer("jobs", jobs, 1)
    context = multiprocessing.get_context("spawn")
    plans: Any = context.Queue()
    messages: Any = context.Queue()
    waiting = list(study.plans)
    for plan in (*waiting, *[None] * jobs):
        plans.put(plan)
    shared = replace(study, plans=()), study.done(path), plans, messages  # read once: the file grows meanwhile
    processes = [context.Process(target=_serve, args=shared, daemon=True) for _ in range(jobs)]
    for process in processes:
        process.start()
    failures: list[str] = []
    try:
        while waiting:
            kind, plan, value = _next(messages, processes)
            if kind == "start":
                on_start(plan, value)
            elif kind == "progress":
                on_progress(plan, value)
            else:
                waiting.remove(plan)
                if kind == "failed":
                    failures.append(f"{plan.codec or plan.controller}, memory {plan.memory}: {value}")
                    continue
                record, fresh = value
                if fresh and path is not None:
                    records.append(path, [record])
                yield record
    finally:
        for process in processes:
            process.terminate()
    if failures:
        told = "\n".join(failures)
        raise LaunchFailed(f"bench accuracy: {len(failures)} of {len(study.plans)} runs failed:\n{told}")


def _next(messages: Any, processes: list[Any]) -> Message:
    while True:
        try:
            message: Message = messages.get(timeout=POLL)
            return message
        except queue.Empty:
            dead = [p.exitcode for p in processes if not p.is_alive() and p.exitcode]
            if dead:
                raise LaunchFailed(
                    f"bench accuracy: a process ended with exit code {dead[0]} in the middle of a run, out of memory, "
                    "say; what was done before is recorded, start again with fewer --jobs"
                ) from None


def _serve(study: Study, done: Mapping[str, Record], plans: Any, messages: Any) -> None:
    """One process: run what comes, until nothing does."""
    opened: dict[Any, Any] = {}
    for plan in iter(plans.get, None):
        fresh = True

        def start(plan: Plan, runs: bool) -> None:
            nonlocal fresh
            fresh = runs
            messages.put(("start", plan, runs))

        try:
            found = study.one(plan, done, opened, start, lambda p, h: messages.put(("progress", p, h)))
            messages.put(("record", plan, (found, fresh)))
        except Exception:
            messages.put(("failed", plan, traceback.format_exc(limit=-3)))
