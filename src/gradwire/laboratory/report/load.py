"""Record files as a report wants them: checked, without doubles, each record with the name of its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.core.errors import ConfigError
from gradwire.core.records import KINDS, MAKE, Record, files, load


@dataclass(frozen=True)
class Sourced:
    """A record and the name of the file it is from."""

    file: str
    record: Record


def read(paths: Sequence[str | Path]) -> tuple[list[Sourced], Counter[str]]:
    """The records that a report shows, and how many of other kinds there are. A folder stands for its .jsonl files."""
    if not paths:
        raise ConfigError(f"report: name at least one file of records; {MAKE}")
    found = [s for path in paths for file in files("report", path) for s in _records(file)]
    known = [s for s in found if s.record.kind in KINDS]
    others = Counter(s.record.kind for s in found if s.record.kind not in KINDS)
    if not known:
        raise ConfigError(
            f"report: there is no record of a kind that a report shows ({', '.join(sorted(KINDS))}), only "
            f"{_counted(others)}; {MAKE}"
        )
    once = {s.record.to_json(): s for s in reversed(known)}  # a file given twice, or copied, counts once
    return list(reversed(once.values())), others


def _records(path: Path) -> list[Sourced]:
    found = load(path, KINDS)
    if not found:
        raise ConfigError(f"report: {str(path)!r} is empty, so there is nothing to report; {MAKE}")
    return [Sourced(path.name, record) for record in found]


def _counted(kinds: Mapping[str, int]) -> str:
    """
    >>> _counted({"tests": 5})
    '5 of kind tests'
    """
    return ", ".join(f"{count} of kind {kind}" for kind, count in sorted(kinds.items()))


def of_kind(sources: Iterable[Sourced], kind: str) -> list[Record]:
    """Their records, in order."""
    return [s.record for s in sources if s.record.kind == kind]


def machine(record: Record) -> str:
    """The hardware by name. Numbers of two machines are never compared."""
    where = record.environment
    cores = f", {where['cores']} cores" if where.get("cores") else ""
    gpu = f", {where['gpu']}" if where.get("gpu") else ""
    return f"{where.get('cpu') or 'unknown processor'}{cores}{gpu}"


def newest(records: Sequence[Record], *names: str) -> list[Record]:
    """Of records on one machine that agree in these parameters, the last one; in the order of the first ones."""
    found: dict[tuple[object, ...], Record] = {}
    for record in sorted(records, key=lambda r: r.time):
        found[(machine(record), *(record.what.get(n) for n in names))] = record
    return [found[key] for key in dict.fromkeys((machine(r), *(r.what.get(n) for n in names)) for r in records)]
