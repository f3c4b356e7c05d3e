"""DAGM 2007, class 1: grey surfaces, some with a defect, and a mask of where it is.

Read from the published folders, `Class1/Train` and `Class1/Test` with their masks under `Label`, in the archive or
unpacked (which needs Pillow), or from a compact form: `train.npz` and `test.npz` with images `x` and masks `m`, packed
eight pixels to a byte. An image without a mask file has no defect.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError, MissingExtra
from gradwire.laboratory.bench.data import archive, packed
from gradwire.laboratory.bench.data.archive import Archive

TITLE = "DAGM 2007 class 1"
# Its page lists no checksum that we could verify: the first download's is written down.
ARCHIVE = Archive("Class1.zip", "https://zenodo.org/records/12750201/files/Class1.zip", None)


@dataclass(frozen=True)
class Surfaces:
    """Images and masks as uint8 of shape (count, height, width); a mask is 1 where the defect is."""

    title: str
    train: Tensor
    train_masks: Tensor
    test: Tensor
    test_masks: Tensor


def load(directory: Path | None) -> Surfaces:
    """From a folder, or from the cache if None."""
    if directory is None:
        return _from_archive(archive.fetch(ARCHIVE))
    for place in archive.places(directory, "Class1", "dagm2007_class1"):
        if (place / "train.npz").is_file() and (place / "test.npz").is_file():
            return _from_compact(place)
        if (place / "Train").is_dir() and (place / "Test").is_dir():
            return _from_folder(place)
        if (place / ARCHIVE.name).is_file():
            return _from_archive(place / ARCHIVE.name)
    raise archive.absent(TITLE, directory, f"Class1 with its folders Train and Test, {ARCHIVE.name} or train.npz")


def _from_compact(place: Path) -> Surfaces:
    np = packed.numpy()
    parts: list[Tensor] = []
    for name in ("train.npz", "test.npz"):
        with np.load(place / name, allow_pickle=False) as file:
            parts += [torch.from_numpy(file["x"]), torch.from_numpy(np.unpackbits(file["m"], axis=-1))]
    return Surfaces(TITLE, *parts)


def _from_folder(place: Path) -> Surfaces:
    files = (path for path in sorted(place.rglob("*")) if _is_picture(path))
    return _surfaces((path.relative_to(place), path.read_bytes()) for path in files)


def _from_archive(path: Path) -> Surfaces:
    return _surfaces(sorted(packed.matching(path, _is_picture).items()))


def _is_picture(path: PurePath) -> bool:
    return path.suffix.lower() == ".png"


def _surfaces(files: Iterable[tuple[PurePath, bytes]]) -> Surfaces:
    """Sort pictures by their folders: `Train` or `Test`, and below it the images, or `Label` with the masks."""
    images: dict[str, dict[str, Tensor]] = {"train": {}, "test": {}}
    masks: dict[str, dict[str, Tensor]] = {"train": {}, "test": {}}
    for path, data in files:
        folders = [part.lower() for part in path.parts[:-1]]
        part = "train" if "train" in folders else "test" if "test" in folders else None
        if part:
            kind = masks if "label" in folders else images
            kind[part][path.stem.lower().removesuffix("_label")] = _pixels(data, path)
    if not images["train"] or not images["test"]:
        raise ConfigError(f"data: {TITLE} must hold PNG images in Train and Test, found none; get the archive again")
    return Surfaces(TITLE, *(t for part in ("train", "test") for t in _stacked(images[part], masks[part])))


def _stacked(images: dict[str, Tensor], masks: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    pixels = torch.stack(list(images.values()))
    empty = torch.zeros_like(pixels[0])
    return pixels, torch.stack([(masks.get(name, empty) > 127).to(torch.uint8) for name in images])


def _pixels(data: bytes, path: PurePath) -> Tensor:
    np = packed.numpy()
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as missing:
        raise MissingExtra(
            "data: PNG images need Pillow, which is not installed; run: pip install pillow, or use the compact form"
        ) from missing
    try:
        with Image.open(io.BytesIO(data)) as picture:
            grey: Any = np.array(picture.convert("L"))
    except (UnidentifiedImageError, OSError) as problem:
        raise ConfigError(f"data: {str(path)!r} is not a readable PNG ({problem}); get the archive again") from problem
    return torch.from_numpy(grey)
