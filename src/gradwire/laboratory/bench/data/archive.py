"""Public archives: a URL, a checksum, a place in the cache, and what to say when none of it can be had.

A file is downloaded beside its place, checked, and only then moved there, so that a cut-off transfer is never taken
for data. Where nobody publishes a checksum, that of the first download is written down and held to afterwards.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from gradwire.core.errors import ConfigError
from gradwire.core.units import format_bytes

CACHE = "GRADWIRE_DATA"  # environment variable that moves the cache
TIMEOUT = 30.0  # seconds without a byte
_BLOCK = 1 << 20  # bytes

Progress = Callable[[int, int | None], None]  # bytes so far, and in all if known


@dataclass(frozen=True)
class Archive:
    """One published file."""

    name: str  # in the cache
    url: str
    checksum: str | None  # "md5:..." or "sha256:..." as published; None where nobody does
    size: int | None = None  # bytes


def cache() -> Path:
    """The folder of downloads: $GRADWIRE_DATA, else ~/.cache/gradwire/data."""
    chosen = os.environ.get(CACHE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "gradwire" / "data"


def places(directory: Path, *names: str) -> Iterator[Path]:
    """Where a data set may lie when somebody names its folder or the one above it."""
    if not directory.is_dir():
        raise ConfigError(f"data: --data-dir must be a folder, got {str(directory)!r}; check its spelling")
    yield directory
    yield from (directory / name for name in names if (directory / name).is_dir())


def absent(title: str, directory: Path, wanted: str) -> ConfigError:
    """What to raise when a folder holds nothing of the data set called `title`."""
    return ConfigError(f"data: no {title} in {str(directory)!r}; --data-dir must hold {wanted}, or use --synthetic")


def fetch(archive: Archive, *, progress: Progress | None = None, timeout: float = TIMEOUT) -> Path:
    """The archive in the cache, downloaded if it is not there yet."""
    path = cache() / archive.name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _download(archive, path, progress or _progress_of(archive), timeout)
    elif found := _mismatch(archive, path):
        raise ConfigError(
            f"data: {str(path)!r} is not the published {archive.name} ({found}); delete it to download it again"
        )
    return path


def _download(archive: Archive, path: Path, progress: Progress, timeout: float) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # several ranks may download at once
    try:
        with part.open("wb") as out:
            _transfer(archive, out, progress, timeout)
        if found := _mismatch(archive, part):
            raise _refused(archive, f"what arrived is not the published file ({found})")
        if archive.checksum is None:
            _note(path).write_text(_digest(part, "sha256") + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _transfer(archive: Archive, out: IO[bytes], progress: Progress, timeout: float) -> None:
    done = 0
    try:
        # Some hosts turn away urllib's own name.
        request = Request(archive.url, headers={"User-Agent": "gradwire"})
        with urlopen(request, timeout=timeout) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else archive.size
            while block := answer.read(_BLOCK):
                out.write(block)
                done += len(block)
                progress(done, total)
    except HTTPError as problem:
        problem.close()
        raise _refused(archive, f"the server says {problem.code} {problem.reason}") from None
    except (URLError, OSError, http.client.HTTPException) as problem:
        cause = problem.reason if isinstance(problem, URLError) else problem
        raise _refused(archive, f"the connection failed ({cause or type(problem).__name__})") from problem
    if total is not None and done != total:
        raise _refused(archive, f"the transfer ended after {done} of {total} bytes")


def _refused(archive: Archive, why: str) -> ConfigError:
    return ConfigError(
        f"data: {archive.name} cannot be downloaded from {archive.url}: {why}. Download it elsewhere and name its "
        "folder with --data-dir, or use --synthetic"
    )


def _mismatch(archive: Archive, path: Path) -> str:
    """How a file differs from the published one; empty if it does not."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        return f"{size} bytes instead of {archive.size}"
    wanted = archive.checksum
    if wanted is None:
        note = _note(cache() / archive.name)
        wanted = f"sha256:{note.read_text().strip()}" if note.is_file() else None
    if wanted is None:
        return ""
    kind, _, digest = wanted.partition(":")
    found = _digest(path, kind)
    return "" if found == digest else f"{kind} {found} instead of {digest}"


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _note(path: Path) -> Path:
    """Where the checksum of a first download is kept."""
    return path.with_name(f"{path.name}.sha256")


def _progress_of(archive: Archive) -> Progress:
    """Tell a terminal how far the download is; say nothing to a log."""

    def show(done: int, total: int | None) -> None:
        share = f" of {format_bytes(total)}" if total else ""
        end = "\n" if done == total else ""
        print(f"\r{archive.name}: {format_bytes(done)}{share}   ", end=end, file=sys.stderr, flush=True)

    return show if sys.stderr.isatty() else lambda done, total: None
