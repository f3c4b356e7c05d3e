"""Files out of a tar or a zip, read in memory: nothing is unpacked to the disk, and no path inside is trusted."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from types import ModuleType

from gradwire.core.errors import ConfigError, MissingExtra

Choice = Callable[[PurePosixPath], bool]


def numpy() -> ModuleType:
    """numpy, which the loaders need and the rest of the package does not."""
    try:
        import numpy
    except ImportError as missing:
        raise MissingExtra(
            "data: reading data sets needs numpy, which is not installed; run: pip install numpy"
        ) from missing
    return numpy


def named(archive: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files called `names`, in whatever folder of the archive they lie."""
    wanted = set(names)
    found = {path.name: data for path, data in matching(archive, lambda path: path.name in wanted).items()}
    if missing := sorted(wanted - set(found)):
        raise ConfigError(f"data: {str(archive)!r} holds no {', '.join(missing)}; is it the published archive?")
    return found


def matching(archive: Path, choose: Choice) -> dict[PurePosixPath, bytes]:
    """The contents of all files that `choose` takes, by their paths inside the archive."""
    try:
        return _from_zip(archive, choose) if archive.suffix == ".zip" else _from_tar(archive, choose)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as problem:
        raise ConfigError(
            f"data: {str(archive)!r} cannot be read ({problem}); it may be cut off, so delete it and get it again"
        ) from problem


def _from_zip(archive: Path, choose: Choice) -> dict[PurePosixPath, bytes]:
    with zipfile.ZipFile(archive) as file:
        paths = [PurePosixPath(i.filename) for i in file.infolist() if not i.is_dir()]
        return {path: file.read(str(path)) for path in paths if choose(path)}


def _from_tar(archive: Path, choose: Choice) -> dict[PurePosixPath, bytes]:
    found = {}
    with tarfile.open(archive) as file:
        for member in file:  # in the order of the file: seeking back would decompress it again
            path = PurePosixPath(member.name)
            if member.isfile() and choose(path) and (data := file.extractfile(member)):
                found[path] = data.read()
    return found
