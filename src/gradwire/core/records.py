"""One measurement = one frozen dataclass = one line of JSON, with all that is needed to judge it or make it again.

Records are appended to a ``.jsonl`` file and never edited; reports are rebuilt from them alone. What fills in
`commit` and `environment` is `gradwire.core.environment`. A record holds no path and no host name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.core.errors import ConfigError

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Where a fifth, a half and four fifths of the samples lie below."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quantiles:
        """Of at least one sample, linear between neighbours."""
        if not samples:
            raise ConfigError("Quantiles: there is no quantile of no samples; measure at least one")
        return cls(p20=quantile(samples, 0.2), p50=quantile(samples, 0.5), p80=quantile(samples, 0.8))


def quantile(samples: Sequence[float], share: float) -> float:
    """The value that `share` of the samples lie below.

    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0], 0.8)
    (2.0, 1.8)
    """
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement."""

    kind: str  # which experiment
    what: Mapping[str, Any]  # its parameters
    command: str  # that makes it again
    time: str  # UTC, ISO 8601; records of one run share it
    commit: str  # of the source tree, or "unknown"
    dirty: bool  # the package's files differed from that commit
    environment: Mapping[str, Any]  # hardware and versions
    unit: str  # of quantiles and samples
    quantiles: Quantiles
    samples: tuple[float, ...]
    outcome: Mapping[str, Any] = field(default_factory=dict)  # what else was found: bytes, loss, …
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """One line."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Record:
        """Read what `to_json` wrote."""
        values = json.loads(line)
        if not isinstance(values, dict) or values.get("format_version") != FORMAT_VERSION:
            found = values.get("format_version") if isinstance(values, dict) else type(values).__name__
            raise ConfigError(
                f"record: format {FORMAT_VERSION} was wanted, got {found!r}; read it with its own version"
            )
        wanted, present = {f.name for f in dataclasses.fields(cls)}, set(values)
        if wanted != present:
            raise ConfigError(
                f"record: missing {sorted(wanted - present)}, unknown {sorted(present - wanted)}; "
                "records are never edited, so take the line from its source again"
            )
        values["quantiles"] = Quantiles(**values["quantiles"])
        values["samples"] = tuple(values["samples"])
        return cls(**values)


def append(path: str | Path, records: Iterable[Record]) -> None:
    """Add records to the end of a file, made if it is not there."""
    lines = [record.to_json() + "\n" for record in records]  # all of them, before the file is touched
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(lines)


def load(path: str | Path) -> list[Record]:
    """All records of a file, in order."""
    records = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(Record.from_json(line))
        except ValueError as problem:  # a ConfigError is one too
            raise ConfigError(f"{Path(path).name}, line {number}: {problem}") from problem
    return records
