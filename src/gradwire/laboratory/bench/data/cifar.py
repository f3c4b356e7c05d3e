"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 images of 32 x 32 pixels to train on, 10,000 to test.

Read from the published Python pickles, in their archive or unpacked, or from a compact form: `train_1.npz` to
`train_5.npz` and `test.npz`, each with labels `y` and images `d`, the planes G, R-G and B-G as differences modulo 256
along rows and columns. Pickles are opened by a reader that builds arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench.data import archive, packed
from gradwire.laboratory.bench.data.archive import Archive

_HOST = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Published:
    """One of the two sets as it is published."""

    title: str
    classes: int
    archive: Archive
    folder: str  # inside the archive
    train: tuple[str, ...]  # files
    test: tuple[str, ...]
    labels: bytes  # key in the pickles
    compact: str  # usual folder of the compact form


SETS = {
    "cifar10": Published(
        "CIFAR-10",
        10,
        Archive(
            "cifar-10-python.tar.gz",
            _HOST + "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170_498_071,
        ),
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        ("test_batch",),
        b"labels",
        "cifar10",
    ),
    "cifar100": Published(
        "CIFAR-100",
        100,
        Archive(
            "cifar-100-python.tar.gz",
            _HOST + "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
        ),
        "cifar-100-python",
        ("train",),
        ("test",),
        b"fine_labels",
        "cifar100",
    ),
}


@dataclass(frozen=True)
class Images:
    """Pixels as uint8 of shape (count, height, width, 3), labels as int64."""

    title: str
    classes: int
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def load(name: str, directory: Path | None) -> Images:
    """The set called "cifar10" or "cifar100", from a folder, or from the cache if None."""
    published = SETS[name]
    if directory is None:
        return _from_archive(published, archive.fetch(published.archive))
    for place in archive.places(directory, published.folder, published.compact):
        if all((place / file).is_file() for file in published.train + published.test):
            return _from_folder(published, place)
        if (place / published.archive.name).is_file():
            return _from_archive(published, place / published.archive.name)
        if published.compact == "cifar10" and (place / "train_1.npz").is_file():
            return _from_compact(published, place)
    wanted = f"{published.archive.name}, its folder {published.folder}"
    raise archive.absent(published.title, directory, wanted + (", or train_1.npz" if name == "cifar10" else ""))


def _from_archive(published: Published, path: Path) -> Images:
    files = packed.named(path, published.train + published.test)
    return _images(published, lambda file: _pickled(files[file], published, file))


def _from_folder(published: Published, place: Path) -> Images:
    return _images(published, lambda file: _pickled((place / file).read_bytes(), published, file))


def _from_compact(published: Published, place: Path) -> Images:
    parts = {name: place / f"train_{name[-1]}.npz" for name in published.train} | {"test_batch": place / "test.npz"}
    return _images(published, lambda file: _compact(parts[file]))


def _images(published: Published, read: Callable[[str], tuple[Any, Any]]) -> Images:
    train, train_labels = _joined(published, [read(file) for file in published.train])
    test, test_labels = _joined(published, [read(file) for file in published.test])
    return Images(published.title, published.classes, train, train_labels, test, test_labels)


def _joined(published: Published, parts: Sequence[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
    np = packed.numpy()
    pixels = torch.from_numpy(np.ascontiguousarray(np.concatenate([p for p, _ in parts])))
    labels = torch.from_numpy(np.concatenate([np.asarray(y, np.int64) for _, y in parts]))
    if pixels.dtype != torch.uint8 or pixels.shape[1:] != (32, 32, 3) or len(pixels) != len(labels):
        raise ConfigError(
            f"data: {published.title} must hold 32 x 32 pixels of three bytes and a label each, got {pixels.dtype} of "
            f"shape {tuple(pixels.shape)} with {len(labels)} labels; get the files again"
        )
    return pixels, labels


def _pickled(data: bytes, published: Published, file: str) -> tuple[Any, Any]:
    try:
        content = _Arrays(io.BytesIO(data), encoding="bytes").load()
        pixels = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return pixels, content[published.labels]
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
        raise ConfigError(
            f"data: {file!r} of {published.title} is not the published pickle ({problem}); get the archive again"
        ) from problem


def _compact(path: Path) -> tuple[Any, Any]:
    np = packed.numpy()
    with np.load(path, allow_pickle=False) as part:
        labels = part["y"]
        green, red, blue = part["d"].cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], -1), labels


class _Arrays(pickle.Unpickler):
    """Builds plain values and numpy arrays; whatever else a pickle asks for is refused."""

    def find_class(self, module: str, name: str) -> Any:
        np = packed.numpy()
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            # Files of 2009 pass 0 and 1, which newer numpy warns about.
            return lambda kind, align=False, copy=False: np.dtype(kind, align=bool(align), copy=bool(copy))
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np.ndarray.__reduce__(np.empty(0))[0]
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in old protocols
            return lambda text, encoding="latin1": text.encode("latin1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
