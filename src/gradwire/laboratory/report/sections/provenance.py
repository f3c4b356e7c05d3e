"""Where the numbers come from: file, command, commit, hardware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gradwire.core.records import Record
from gradwire.laboratory.report.load import Sourced, machine
from gradwire.laboratory.report.page import Fold, Section, Text

VERSIONS = ("python", "torch", "numba", "gradwire")


def section(sources: Sequence[Sourced], others: Mapping[str, int]) -> Section:
    """Of each file, one point for each command at each commit on each machine."""
    files = [
        _file(name, [s.record for s in sources if s.file == name]) for name in dict.fromkeys(s.file for s in sources)
    ]
    intro = (
        "Every number above comes from these records, which are appended to their files and never edited; the command "
        "makes them again. Numbers of different machines are never compared, and ratios are formed within one run."
    )
    left_out = ", ".join(f"{n} of kind {kind}" for kind, n in sorted(others.items()))
    more = [f"Not shown: {left_out}."] if left_out else []
    gist = "files, commands, commits and machines"
    return Section("provenance", "Where the numbers come from", [Text([intro, *more]), *files], gist=gist)


def _file(name: str, records: Sequence[Record]) -> Fold:
    kinds = ", ".join(f"{n:,} records of kind {kind}" for kind, n in Counter(r.kind for r in records).items())
    counted = Counter((r.kind, _told(r)) for r in records)
    points = [f"{n} records of kind {kind}: {told}" for (kind, told), n in counted.items()]
    return Fold(f"`{name}`: {kinds}", [Text(points, points=True)])


def _told(record: Record) -> str:
    where = record.environment
    changed = " with uncommitted changes" if record.dirty else ""
    versions = ", ".join(f"{name} {where[name]}" for name in VERSIONS if where.get(name))
    system = f"{where['os']}, " if where.get("os") else ""
    return (
        f"{record.time[:10]}, `{record.command}`, commit `{record.commit[:12]}`{changed}; {machine(record)}; "
        f"{system}{versions}; {where.get('backend', 'backend unknown')}."
    )
