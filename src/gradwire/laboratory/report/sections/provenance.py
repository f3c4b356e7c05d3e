"""Where the numbers come from: file, command, commit, hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gradwire.core.records import Record
from gradwire.laboratory.report.load import Sourced, machine
from gradwire.laboratory.report.page import Section, Text

VERSIONS = ("python", "torch", "numba", "gradwire")


def section(sources: Sequence[Sourced], others: Mapping[str, int]) -> Section:
    """One point for each command at each commit on each machine."""
    counted = Counter((s.file, _told(s.record)) for s in sources)
    first = {(s.file, _told(s.record)): s.record for s in reversed(sources)}
    points = [f"`{file}`, {n} records of kind {first[file, told].kind}: {told}" for (file, told), n in counted.items()]
    intro = (
        "Every number above comes from these records, which are appended to their files and never edited; the command "
        "makes them again. Numbers of different machines are never compared, and ratios are formed within one run."
    )
    left_out = ", ".join(f"{n} of kind {kind}" for kind, n in sorted(others.items()))
    more = [f"Not shown: {left_out}."] if left_out else []
    return Section("provenance", "Where the numbers come from", [Text([intro, *more]), Text(points, points=True)])


def _told(record: Record) -> str:
    where = record.environment
    changed = " with uncommitted changes" if record.dirty else ""
    versions = ", ".join(f"{name} {where[name]}" for name in VERSIONS if where.get(name))
    system = f"{where['os']}, " if where.get("os") else ""
    return (
        f"{record.time[:10]}, `{record.command}`, commit `{record.commit[:12]}`{changed}; {machine(record)}; "
        f"{system}{versions}; {where.get('backend', 'backend unknown')}."
    )
