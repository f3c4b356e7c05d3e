"""One measurement = one frozen dataclass = one line of JSON, with all that is needed to judge it or make it again.

Records are appended to a ``.jsonl`` file and never edited; reports are rebuilt from them alone. What fills in
`commit` and `environment` is `gradwire.core.environment`. A record holds no path and no host name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.core.errors import ConfigError, GradwireWarning

FORMAT_VERSION = 1
# what a terminal acts on instead of showing it: control characters but tab and line end, and changes of direction
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
MAKE = "make some, as in: gradwire bench step --record steps.jsonl"
AGAIN = "records are never edited, so take the file from its source again"
# kind -> what every record of it holds: keys of `what`, keys of `outcome`. Pages and fits read these kinds.
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
_NAMES = {dict: "an object", list: "a list", str: "a text", type(None): "null"}  # of JSON; all others are numbers
# what values under these keys are, in `what` and in `outcome`, where they are not null
_WHOLE = frozenset(("batch", "elements", "hosts", "ranks_per_host", "workers"))
_NUMBERS = frozenset(("accuracy", "bits_per_second", "error", "interface_bytes", "loss", "measured_seconds"))
_TEXTS = frozenset(("codec", "configuration", "device", "mode", "model", "strategy", "task"))


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
        if "\\u" in line or CONTROL.search(line):  # records may come from anywhere, and are shown
            values = _harmless(values)
        version = values.get("format_version") if isinstance(values, dict) else None
        if not isinstance(values, dict) or version is None:
            raise ConfigError(f"a record was wanted, got {_NAMES.get(type(values), 'a number')}; {MAKE}")
        if version != FORMAT_VERSION:
            raise ConfigError(f"a record of format {FORMAT_VERSION} was wanted, got {version!r}; use its own version")
        wanted, present = {f.name for f in dataclasses.fields(cls)}, set(values)
        if wanted != present:
            raise ConfigError(
                f"a record was wanted, got one without {sorted(wanted - present)} and with unknown "
                f"{sorted(present - wanted)}; {AGAIN}"
            )
        kinds = {"what": dict, "environment": dict, "quantiles": dict, "outcome": dict, "samples": list}
        for name, kind in kinds.items():
            if not isinstance(values[name], kind):
                raise ConfigError(f"`{name}` must be {_NAMES[kind]}, got {values[name]!r}; {AGAIN}")
        quantiles = {name: values["quantiles"].get(name) for name in ("p20", "p50", "p80")}
        for value in (*quantiles.values(), *values["samples"]):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"`quantiles` and `samples` must be numbers, got {value!r}; {AGAIN}")
        values["quantiles"] = Quantiles(**quantiles)
        values["samples"] = tuple(values["samples"])
        return cls(**values)

    def check(self, *, what: Sequence[str] = (), outcome: Sequence[str] = ()) -> None:
        """Refuse a record that does not hold these keys, and what all of its kind hold."""
        keys = zip(("what", "outcome"), KINDS.get(self.kind, ((), ())), (what, outcome), strict=True)
        missing = [f"{of}.{k}" for of, all, more in keys for k in (*all, *more) if k not in getattr(self, of)]
        if missing:
            raise ConfigError(f"a record of kind {self.kind} is without {', '.join(missing)}; {AGAIN}")
        for of in ("what", "outcome"):
            for key, value in getattr(self, of).items():
                wanted = _wanted(key, value)
                if wanted:
                    raise ConfigError(f"`{of}.{key}` must be {wanted}, got {value!r}; {AGAIN}")


def _wanted(key: str, value: object) -> str | None:
    """What should stand under a key in the place of a value; None if that is right, or any value is.

    >>> _wanted("batch", "eight"), _wanted("batch", 8), _wanted("note", 8)
    ('a whole number', None, None)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return None
    if key in _WHOLE:
        return None if number and isinstance(value, int) else "a whole number"
    if key in _NUMBERS:
        return None if number else "a number"
    return "a text" if key in _TEXTS and not isinstance(value, str) else None


def append(path: str | Path, records: Iterable[Record]) -> None:
    """Add records to the end of a file, made if it is not there. A torn last line is cut off first."""
    text = "".join(record.to_json() + "\n" for record in records)  # all of them, before the file is touched
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    last = _content(path).rpartition(b"\n")[2] if path.exists() else b""
    with path.open("ab") as file:
        if _is_torn(last):
            file.truncate(file.tell() - len(last))
        elif last:
            file.write(b"\n")
        file.write(text.encode())


def load(path: str | Path, checked: Collection[str] = ()) -> list[Record]:
    """All records of a file, in order; those of the kinds that are `checked` hold what all of their kind do.

    A last line without its end is what a run leaves behind that was killed while it wrote: behind other lines it is
    left out, with a warning. Anything else that is no record is an error with its line number.
    """
    path, records = Path(path), []
    *lines, last = _content(path).split(b"\n")
    torn = bool(lines) and _is_torn(last)
    for number, line in enumerate(lines if torn else (*lines, last), start=1):
        if line.strip():
            try:
                records.append(_record(line, checked))
            except ConfigError as problem:
                raise ConfigError(f"{path.name}, line {number}: {problem}") from problem
    if torn:
        what = "the last line is torn and was left out; the run that wrote it was probably killed"
        warnings.warn(f"{path.name}, line {len(lines) + 1}: {what}", GradwireWarning, stacklevel=2)
    return records


def _record(line: bytes, checked: Collection[str]) -> Record:
    try:
        record = Record.from_json(line.decode())
    except UnicodeDecodeError as problem:
        raise ConfigError(f"JSON was wanted, got bytes that are no text; {MAKE}") from problem
    except json.JSONDecodeError as problem:
        raise ConfigError(f"no line of JSON ({problem.msg}); {AGAIN}") from problem
    if record.kind in checked:
        record.check()
    return record


def load_all(who: str, paths: Iterable[str | Path], checked: Collection[str] = ()) -> list[Record]:
    """The records of files; a folder stands for its .jsonl files. `who` asks, in errors."""
    return [record for path in paths for file in files(who, path) for record in load(file, checked)]


def files(who: str, path: str | Path) -> list[Path]:
    """The file itself, or a folder's .jsonl files; refused if there are none."""
    path = Path(path)
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.exists() else []
    if not found:
        problem = f"the folder {str(path)!r} has no .jsonl file" if path.is_dir() else f"there is no file {str(path)!r}"
        raise ConfigError(f"{who}: {problem}; check the name, or {MAKE}")
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"{str(path)!r} cannot be read ({problem.strerror}); name a file of records") from problem


def _is_torn(last: bytes) -> bool:
    """Whether what follows the last end of a line is more than nothing and no whole JSON."""
    try:
        json.loads(last or b"{}")
    except ValueError:  # a UnicodeDecodeError is one too
        return True
    return False


def _harmless(value: Any) -> Any:
    """The same with a mark in the place of characters that a terminal would act on."""
    if isinstance(value, str):
        return CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_harmless(key): _harmless(one) for key, one in value.items()}
    return [_harmless(one) for one in value] if isinstance(value, list) else value
