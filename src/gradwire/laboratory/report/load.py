"""Record files as a report wants them: checked, without doubles, each record with the name of its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.core.errors import ConfigError
from gradwire.core.records import Record, load

# kind -> what a report reads of such a record: keys of `what`, keys of `outcome`
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "step": (
        ("model", "batch", "hosts", "ranks_per_host", "bits_per_second", "configuration"),
        ("parts_seconds", "sent_bytes", "interface_bytes"),
    ),
    "demo": (("configuration", "task", "workers"), ("sent_bytes", "loss", "accuracy")),
    "prediction": (("configuration", "model", "hosts", "bits_per_second"), ("measured_seconds", "error", "profile")),
    "encode": (("codec", "elements", "device"), ("payload_bytes", "seconds", "copy_seconds")),
    "collective": (
        ("codec", "strategy", "elements", "hosts", "ranks_per_host", "bits_per_second"),
        ("interface_bytes", "peak_bytes"),
    ),
    "accuracy": ((), ()),
    "training": (
        ("model", "configuration", "workers"),
        ("step", "sent_bytes", "plain_bytes", "hidden_seconds", "exposed_seconds", "parts_seconds"),
    ),
}
MAKE = "make some with: gradwire bench step --record steps.jsonl"


@dataclass(frozen=True)
class Sourced:
    """A record and the name of the file it is from."""

    file: str
    record: Record


def read(paths: Sequence[str | Path]) -> tuple[list[Sourced], Counter[str]]:
    """The records that a report shows, and how many of other kinds there are. A folder stands for its .jsonl files."""
    found = [s for path in _files(paths) for s in _records(path)]
    known = [s for s in found if s.record.kind in KINDS]
    others = Counter(s.record.kind for s in found if s.record.kind not in KINDS)
    if not known:
        raise ConfigError(
            f"report: there is no record of a kind that a report shows ({', '.join(sorted(KINDS))}), only "
            f"{_counted(others)}; {MAKE}"
        )
    for sourced in known:
        _check(sourced)
    once = {s.record.to_json(): s for s in reversed(known)}  # a file given twice, or copied, counts once
    return list(reversed(once.values())), others


def _files(paths: Sequence[str | Path]) -> list[Path]:
    if not paths:
        raise ConfigError(f"report: name at least one file of records; {MAKE}")
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            if not inside:
                raise ConfigError(f"report: the folder {str(path)!r} has no .jsonl file; {MAKE}")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise ConfigError(f"report: there is no file {str(path)!r}; check the name, or {MAKE}")
    return files


def _records(path: Path) -> list[Sourced]:
    try:
        records = load(path)
    except UnicodeDecodeError as problem:
        raise ConfigError(f"report: {str(path)!r} is not a text file; records are lines of JSON; {MAKE}") from problem
    except OSError as problem:
        raise ConfigError(
            f"report: {str(path)!r} cannot be read ({problem.strerror}); check its permissions"
        ) from problem
    if not records:
        raise ConfigError(f"report: {str(path)!r} is empty, so there is nothing to report; {MAKE}")
    return [Sourced(path.name, record) for record in records]


def _check(sourced: Sourced) -> None:
    record = sourced.record
    what, outcome = KINDS[record.kind]
    missing = [f"what.{k}" for k in what if k not in record.what]
    missing += [f"outcome.{k}" for k in outcome if k not in record.outcome]
    if missing:
        raise ConfigError(
            f"report: {sourced.file} has a record of kind {record.kind} without {', '.join(missing)}; "
            "records are never edited, so take the line from its source again"
        )


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
