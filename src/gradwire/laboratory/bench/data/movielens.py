"""MovieLens-1M and -20M (GroupLens) as NCF uses them: who watched what, the last film of each user held out.

Users and items are numbered from 0 in the order in which they first appear. For each user the latest interaction (the
later line if two have the same time) is the test item, ranked among 99 items that the user never touched; these are
drawn here with a fixed seed. Read from `ratings.dat` or `ratings.csv`, from their archive, or from a compact form: an
npz with pairs `train` and `test` and with `test_negative`, the negatives that the NCF paper's authors published.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench.data import archive, packed
from gradwire.laboratory.bench.data.archive import Archive

NEGATIVES = 99
_SEED = 20_170_403  # of the negatives that we draw
_HOST = "https://files.grouplens.org/datasets/movielens/"


@dataclass(frozen=True)
class Published:
    """One size of the set as it is published."""

    title: str
    archive: Archive
    folder: str
    ratings: str  # file of user, item, rating and time
    separator: str
    header: int  # lines
    compact: tuple[str, str]  # usual folder and file of the compact form


SETS = {
    "ml1m": Published(
        "MovieLens-1M",
        Archive("ml-1m.zip", _HOST + "ml-1m.zip", "md5:c4d9eecfca2ab87c1945afe126590906"),
        "ml-1m",
        "ratings.dat",
        "::",
        0,
        ("ml1m_ncf", "ml1m.npz"),
    ),
    "ml20m": Published(
        "MovieLens-20M",
        Archive("ml-20m.zip", _HOST + "ml-20m.zip", "md5:cd245b17a1ae2cc31bb14903e1204af3", 198_702_078),
        "ml-20m",
        "ratings.csv",
        ",",
        1,
        ("ml20m_ncf", "ml20m.npz"),
    ),
}


@dataclass(frozen=True)
class Interactions:
    """Pairs (user, item) as int32. Row k of `negatives` belongs to row k of `test`."""

    title: str
    users: int
    items: int
    train: Tensor  # (count, 2)
    test: Tensor  # (users, 2)
    negatives: Tensor  # (users, 99)


def load(name: str, directory: Path | None) -> Interactions:
    """The set called "ml1m" or "ml20m", from a folder, or from the cache if None."""
    published = SETS[name]
    if directory is None:
        return _from_archive(published, archive.fetch(published.archive))
    folder, compact = published.compact
    for place in archive.places(directory, published.folder, folder):
        if (place / published.ratings).is_file():
            return split(published.title, *_table((place / published.ratings).read_bytes(), published))
        if (place / compact).is_file():
            return _from_compact(published, place / compact)
        if (place / published.archive.name).is_file():
            return _from_archive(published, place / published.archive.name)
    raise archive.absent(published.title, directory, f"{published.ratings}, {published.archive.name} or {compact}")


def _from_archive(published: Published, path: Path) -> Interactions:
    return split(published.title, *_table(packed.named(path, [published.ratings])[published.ratings], published))


def _from_compact(published: Published, path: Path) -> Interactions:
    np = packed.numpy()
    with np.load(path, allow_pickle=False) as file:
        train, test, negatives = (
            torch.from_numpy(file[key].astype(np.int32)) for key in ("train", "test", "test_negative")
        )
    users = 1 + int(max(train[:, 0].max(), test[:, 0].max()))
    items = 1 + int(max(train[:, 1].max(), test[:, 1].max(), negatives.max()))
    return Interactions(published.title, users, items, train, test, negatives)


def _table(data: bytes, published: Published) -> tuple[Any, Any, Any]:
    """User, item and time of each line, as int64."""
    np = packed.numpy()
    # numpy's reader takes one character between columns; the double colon becomes one with an empty column behind it.
    columns = (0, 2, 6) if published.separator == "::" else (0, 1, 3)
    try:
        table = np.loadtxt(
            io.BytesIO(data),
            dtype=np.int64,
            delimiter=published.separator[0],
            usecols=columns,
            skiprows=published.header,
            ndmin=2,
            comments=None,
        )
    except ValueError as problem:
        raise ConfigError(
            f"data: {published.ratings} of {published.title} must have lines of user, item, rating and time parted by "
            f"{published.separator!r} ({problem}); get the archive again"
        ) from problem
    return table[:, 0], table[:, 1], table[:, 2]


def split(title: str, users: Any, items: Any, times: Any) -> Interactions:
    """Number users and items, hold out each user's last interaction, and draw its negatives."""
    np = packed.numpy()
    user, item = (_by_appearance(column) for column in (users, items))
    num_users, num_items = int(user.max()) + 1, int(item.max()) + 1
    order = np.lexsort((times, user))  # stable: of two at the same time the later line counts as later
    last = np.zeros(len(order), bool)
    last[np.append(np.flatnonzero(np.diff(user[order])), len(order) - 1)] = True
    pairs = torch.from_numpy(np.stack([user, item], 1).astype(np.int32))
    held_out = torch.from_numpy(order[last])
    keep = torch.ones(len(pairs), dtype=torch.bool)
    keep[held_out] = False
    test = pairs[held_out]
    seen = (pairs[:, 0].long() * num_items + pairs[:, 1]).sort().values
    wanted = test[:, 0].repeat_interleave(NEGATIVES)
    negatives = unseen(wanted, seen, num_items, torch.Generator().manual_seed(_SEED)).view(-1, NEGATIVES)
    return Interactions(title, num_users, num_items, pairs[keep], test, negatives)


def unseen(users: Tensor, seen: Tensor, items: int, generator: torch.Generator) -> Tensor:
    """An item for each user that the user has not met: int32, on the device of `users`.

    `seen` holds user * items + item of every interaction, sorted. What collides is drawn again, up to 50 times; only
    somebody who knows nearly every item could still get one that is not new. Numbers come from a CPU generator, so
    every device draws alike.
    """
    drawn = torch.randint(items, users.shape, generator=generator, dtype=torch.int32).to(users.device)
    open_places = torch.arange(len(users), device=users.device)
    for _ in range(50):
        keys = users[open_places].long() * items + drawn[open_places]
        at = torch.searchsorted(seen, keys).clamp(max=len(seen) - 1)
        open_places = open_places[seen[at] == keys]
        if not len(open_places):
            break
        again = torch.randint(items, open_places.shape, generator=generator, dtype=torch.int32)
        drawn[open_places] = again.to(users.device)
    return drawn


def _by_appearance(column: Any) -> Any:
    """Number the values of a column from 0 in the order in which they first appear."""
    np = packed.numpy()
    _, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
