"""Loaders: what is downloaded is checked, what is read is right, and what cannot be had is explained."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from gradwire.core.errors import ConfigError, MissingExtra
from gradwire.laboratory.bench.data import archive, cifar, dagm, movielens, packed, text
from gradwire.laboratory.bench.data.archive import Archive, fetch

CONTENT = bytes(range(256)) * 64
MD5 = hashlib.md5(CONTENT).hexdigest()
WAY_OUT = "Download it elsewhere and name its folder with --data-dir, or use --synthetic"


class Handler(BaseHTTPRequestHandler):
    """/file serves CONTENT, /cut promises more than it sends, /agent wants a name that is not urllib's."""

    seen: ClassVar[list[str]] = []

    def do_GET(self):
        self.seen.append(self.path)
        allowed = self.path != "/agent" or "urllib" not in self.headers["User-Agent"]
        if self.path == "/none" or not allowed:
            self.send_error(404 if allowed else 403)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT) + (1000 if self.path == "/cut" else 0)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADWIRE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(cache):
    Handler.seen = []
    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def message(call, *arguments, **named):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **named)
    return str(caught.value)


# --- archives


@pytest.mark.parametrize("checksum", [f"md5:{MD5}", f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"])
def test_a_file_is_downloaded_once(server, cache, checksum):
    one = Archive("one.bin", f"{server}/file", checksum, len(CONTENT))
    told = []
    path = fetch(one, progress=lambda done, total: told.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert told == [(len(CONTENT), len(CONTENT))]
    assert fetch(one) == path
    assert Handler.seen == ["/file"]
    assert names(cache) == ["one.bin"]


def test_hosts_that_turn_urllib_away_are_asked_by_our_own_name(server):
    assert fetch(Archive("agent.bin", f"{server}/agent", f"md5:{MD5}")).read_bytes() == CONTENT


def test_a_file_url_works_too(cache, tmp_path):
    (tmp_path / "here.bin").write_bytes(CONTENT)
    assert fetch(Archive("b.bin", (tmp_path / "here.bin").as_uri(), f"md5:{MD5}")).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, cache):
    wrong = "0" * 32
    said = message(fetch, Archive("one.bin", f"{server}/file", f"md5:{wrong}"))
    assert said == (
        f"data: one.bin cannot be downloaded from {server}/file: what arrived is not the published file "
        f"(md5 {MD5} instead of {wrong}). {WAY_OUT}"
    )
    assert names(cache) == []


def test_a_wrong_size_is_told_as_such(server, cache):
    said = message(fetch, Archive("one.bin", f"{server}/file", f"md5:{MD5}", 7))
    assert f"({len(CONTENT)} bytes instead of 7)" in said
    assert names(cache) == []


def test_a_transfer_that_is_cut_off_is_no_data(server, cache):
    said = message(fetch, Archive("one.bin", f"{server}/cut", None))
    assert f"the transfer ended after {len(CONTENT)} of {len(CONTENT) + 1000} bytes. {WAY_OUT}" in said
    assert names(cache) == []


def test_a_server_that_refuses_is_quoted(server, cache):
    said = message(fetch, Archive("one.bin", f"{server}/none", None))
    assert said == (f"data: one.bin cannot be downloaded from {server}/none: the server says 404 Not Found. {WAY_OUT}")


def test_offline_says_what_to_do(cache):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers here
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x.zip"
        said = message(fetch, Archive("x.zip", url, None))
    assert said.startswith(f"data: x.zip cannot be downloaded from {url}: the connection failed (")
    assert said.endswith(WAY_OUT)
    assert names(cache) == []


def test_a_server_that_never_answers_is_given_up(cache):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.zip"
        assert "timed out" in message(fetch, Archive("x.zip", url, None), timeout=0.05)


def test_without_a_published_checksum_the_first_download_sets_it(server, cache):
    one = Archive("one.bin", f"{server}/file", None)
    path = fetch(one)
    assert names(cache) == ["one.bin", "one.bin.sha256"]
    assert fetch(one) == path
    path.write_bytes(CONTENT[::-1])
    found, first = (hashlib.sha256(data).hexdigest() for data in (CONTENT[::-1], CONTENT))
    assert message(fetch, one) == (
        f"data: {str(path)!r} is not the published one.bin (sha256 {found} instead of {first}); delete it to download "
        "it again"
    )
    path.unlink()  # what comes later must still be the same
    (cache / "one.bin.sha256").write_text("0" * 64)
    assert "what arrived is not the published file" in message(fetch, one)


def test_the_cache_is_in_the_home_folder_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("GRADWIRE_DATA", raising=False)
    assert archive.cache() == Path.home() / ".cache" / "gradwire" / "data"
    monkeypatch.setenv("GRADWIRE_DATA", "/tmp/elsewhere")
    assert archive.cache() == Path("/tmp/elsewhere")


def test_every_published_archive_has_a_checksum_of_the_right_length():
    known = [s.archive for s in (*cifar.SETS.values(), *movielens.SETS.values())]
    known += [a for s in text.SETS.values() for a in s.archives] + [text.SHAKESPEARE]
    for one in known:
        kind, _, digest = one.checksum.partition(":")
        assert len(bytes.fromhex(digest)) == hashlib.new(kind).digest_size
        assert one.url.startswith("https://")
    assert dagm.ARCHIVE.checksum is None


def test_a_broken_archive_is_named(tmp_path):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as file:
        file.writestr("folder/a.txt", "hello")
    (tmp_path / "good.zip").write_bytes(whole.getvalue())
    assert packed.named(tmp_path / "good.zip", ["a.txt"]) == {"a.txt": b"hello"}
    assert "holds no b.txt; is it the published archive?" in message(packed.named, tmp_path / "good.zip", ["b.txt"])
    for name in ("cut.zip", "cut.tar.gz"):
        (tmp_path / name).write_bytes(whole.getvalue()[:-30])
        assert "it may be cut off, so delete it and get it again" in message(packed.named, tmp_path / name, ["a.txt"])


def test_a_folder_that_is_not_there(tmp_path):
    gone = tmp_path / "gone"
    assert message(text.load, "ptb", gone) == (
        f"data: --data-dir must be a folder, got {str(gone)!r}; check its spelling"
    )


# --- CIFAR


def old_pickle(pixels, labels_key, labels):
    """Bytes as Python 2 wrote them in 2009: text as byte strings, numpy under its old address."""

    def string(data):
        return b"T" + struct.pack("<i", len(data)) + data

    def number(value):
        return b"J" + struct.pack("<i", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR"
        b"(K\x01" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n("
        + string(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + string(b"|")
        + b"NNN"
        + number(-1) * 2
        + b"K\x00tb"
        b"\x89" + string(pixels.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(labels_key) + listed + b"u."


def cifar_files(name, count=3):
    """Contents of all files of a set, and the images they must give."""
    source = np.random.default_rng(0)
    published = cifar.SETS[name]
    files, images = {}, []
    for file in published.train + published.test:
        rows = source.integers(0, 256, (count, 3072), dtype=np.uint8)
        files[file] = old_pickle(rows, published.labels, range(count))
        images.append(rows.reshape(count, 3, 32, 32).transpose(0, 2, 3, 1))
    return files, np.concatenate(images[:-1]), images[-1]


def assert_images(images, train, test):
    assert np.array_equal(images.train.numpy(), train)
    assert np.array_equal(images.test.numpy(), test)
    assert images.train.dtype == torch.uint8
    assert images.train_labels.tolist() == list(range(3)) * (len(train) // 3)
    assert images.test_labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_from_folders_and_archives(name, tmp_path, cache, monkeypatch):
    published = cifar.SETS[name]
    files, train, test = cifar_files(name)
    folder = tmp_path / "data" / published.folder
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    for place in (folder, folder.parent):
        assert_images(cifar.load(name, place), train, test)

    packed_up = tmp_path / published.archive.name
    with tarfile.open(packed_up, "w:gz") as tar:
        tar.add(folder, arcname=published.folder)
    assert_images(cifar.load(name, tmp_path), train, test)

    online = Archive(published.archive.name, packed_up.as_uri(), None)
    monkeypatch.setitem(cifar.SETS, name, type(published)(**{**vars(published), "archive": online}))
    assert_images(cifar.load(name, None), train, test)


def test_cifar_from_the_compact_form(tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    source = np.random.default_rng(1)
    images = {}
    for part in ("train_1", "train_2", "train_3", "train_4", "train_5", "test"):
        images[part] = source.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
        red, green, blue = np.moveaxis(images[part], -1, 0)
        planes = np.stack([green, red - green, blue - green])
        steps = np.diff(np.diff(planes, axis=2, prepend=np.uint8(0)), axis=3, prepend=np.uint8(0))
        np.savez(folder / f"{part}.npz", d=steps, y=np.arange(3, dtype=np.uint8))
    train = np.concatenate(list(images.values())[:-1])
    for place in (folder, tmp_path):
        assert_images(cifar.load("cifar10", place), train, images["test"])


def test_a_pickle_cannot_run_anything(tmp_path):
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return Path.touch, (ran,)

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file, content in cifar_files("cifar10")[0].items():
        (folder / file).write_bytes(content)
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    said = message(cifar.load, "cifar10", tmp_path)
    assert said.startswith("data: 'data_batch_1' of CIFAR-10 is not the published pickle (it asks for ")
    assert said.endswith("); get the archive again")
    assert not ran.exists()


def test_pickles_of_newer_pythons_are_read_too(tmp_path):
    files, train, test = cifar_files("cifar100")
    rows = train.transpose(0, 3, 1, 2).reshape(3, -1)
    for protocol in (2, 4):
        (tmp_path / "train").write_bytes(pickle.dumps({b"data": rows, b"fine_labels": [0, 1, 2]}, protocol))
        (tmp_path / "test").write_bytes(files["test"])
        assert_images(cifar.load("cifar100", tmp_path), train, test)


def test_pixels_of_another_size_are_refused(tmp_path):
    for part in ("train_1", "train_2", "train_3", "train_4", "train_5", "test"):
        np.savez(tmp_path / f"{part}.npz", d=np.zeros((3, 2, 8, 8), np.uint8), y=np.zeros(2, np.uint8))
    assert (
        "must hold 32 x 32 pixels of three bytes and a label each, got torch.uint8 of shape (10, 8, 8, 3)"
        in message(cifar.load, "cifar10", tmp_path)
    )


def test_a_folder_without_cifar(tmp_path):
    assert message(cifar.load, "cifar10", tmp_path) == (
        f"data: no CIFAR-10 in {str(tmp_path)!r}; --data-dir must hold cifar-10-python.tar.gz, its folder "
        "cifar-10-batches-py, or train_1.npz, or use --synthetic"
    )


# --- MovieLens

RATINGS = ((7, 30, 5), (7, 10, 9), (7, 20, 9), (3, 20, 4), (3, 40, 2))  # user, item, time
PAIRS = [[0, 0], [0, 1], [1, 3]]
HELD_OUT = [[0, 2], [1, 2]]  # of two at time 9 the later line; then item 20, numbered third


def assert_interactions(data):
    assert (data.users, data.items) == (2, 4)
    assert data.train.tolist() == PAIRS
    assert data.test.tolist() == HELD_OUT
    assert data.negatives.shape == (2, 99)
    assert data.negatives[0].unique().tolist() == [3]
    assert data.negatives[1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("name", ["ml1m", "ml20m"])
def test_movielens_as_published(name, tmp_path):
    published = movielens.SETS[name]
    head = "userId,movieId,rating,timestamp\n" * published.header
    lines = head + "".join(published.separator.join(map(str, (u, i, "3.5", t))) + "\n" for u, i, t in RATINGS)
    folder = tmp_path / published.folder
    folder.mkdir()
    (folder / published.ratings).write_text(lines)
    for place in (folder, tmp_path):
        assert_interactions(movielens.load(name, place))
    packed_up = tmp_path / "packed"
    packed_up.mkdir()
    with zipfile.ZipFile(packed_up / published.archive.name, "w") as file:
        file.writestr(f"{published.folder}/{published.ratings}", lines)
    assert_interactions(movielens.load(name, packed_up))


def test_movielens_from_the_compact_form(tmp_path):
    folder = tmp_path / "ml1m_ncf"
    folder.mkdir()
    negatives = np.arange(10, 208, dtype=np.uint16).reshape(2, 99)
    np.savez(folder / "ml1m.npz", train=np.uint16(PAIRS), test=np.uint16(HELD_OUT), test_negative=negatives)
    for place in (folder, tmp_path):
        data = movielens.load("ml1m", place)
        assert (data.users, data.items) == (2, 208)
        assert data.train.tolist() == PAIRS
        assert data.test.tolist() == HELD_OUT
        assert data.negatives.tolist() == negatives.tolist()
        assert data.train.dtype == data.negatives.dtype == torch.int32


def test_ratings_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "ratings.dat").write_text("1::two::3::4\n")
    said = message(movielens.load, "ml1m", tmp_path)
    assert said.startswith("data: ratings.dat of MovieLens-1M must have lines of user, item, rating and time parted by")


def test_a_drawn_item_is_one_that_the_user_has_not_met():
    items = 20
    known = torch.tensor([[user, item] for user in range(3) for item in range(items) if (item + user) % 4])
    seen = (known[:, 0] * items + known[:, 1]).sort().values
    users = torch.arange(3, dtype=torch.int32).repeat(500)
    drawn, again = (movielens.unseen(users, seen, items, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(drawn, again)
    assert ((drawn + users) % 4 == 0).all()
    assert len(torch.stack([users, drawn]).unique(dim=1).T) == 15  # each of the five that each user has left


# --- texts


def test_wikitext_in_its_published_and_packed_forms(tmp_path):
    parts = {"train": "\n = A b = \n a b\u2028a \n", "valid": " b c \n", "test": " d <unk> \n"}
    eos, forms = 0, ("wiki.{}.tokens", "{}.txt", "{}.txt.gz")
    for number, form in enumerate(forms):
        folder = tmp_path / str(number) / "wikitext-2"
        folder.mkdir(parents=True)
        for part, words in parts.items():
            data = words.encode()
            (folder / form.format(part)).write_bytes(gzip.compress(data) if form.endswith("gz") else data)
    with zipfile.ZipFile(tmp_path / "wikitext-2-v1.zip", "w") as file:
        for part, words in parts.items():
            file.writestr(f"wikitext-2/wiki.{part}.tokens", words)
    places = [tmp_path / str(n) for n in range(3)] + [tmp_path / "0" / "wikitext-2", tmp_path]
    for place in places:
        loaded = text.load("wikitext2", place)
        # An empty line is an <eos>; "=" "A" "b" "a" are 1 to 4.
        assert loaded.train.tolist() == [eos, 1, 2, 3, 1, eos, 4, 3, 4, eos]
        assert loaded.valid.tolist() == [3, 5, eos]
        assert loaded.test.tolist() == [6, 7, eos]
        assert loaded.words == 8
        assert loaded.title == "WikiText-2"


def test_penn_treebank_from_a_folder_and_from_the_network(tmp_path, cache, monkeypatch):
    folder = tmp_path / "ptb"
    folder.mkdir()
    for part in text.PARTS:
        (folder / f"ptb.{part}.txt").write_text(f" {part} n \n")
    published = text.SETS["ptb"]
    online = tuple(Archive(a.name, (folder / a.name).as_uri(), None) for a in published.archives)
    monkeypatch.setitem(text.SETS, "ptb", type(published)(**{**vars(published), "archives": online}))
    for place in (tmp_path, folder, None):
        loaded = text.load("ptb", place)
        assert [part.tolist() for part in (loaded.train, loaded.valid, loaded.test)] == [
            [0, 1, 2],
            [3, 1, 2],
            [4, 1, 2],
        ]


def test_another_text_is_refused(tmp_path, monkeypatch):
    published = text.SETS["ptb"]
    monkeypatch.setitem(text.SETS, "ptb", type(published)(**{**vars(published), "words": 3}))
    for part in text.PARTS:
        (tmp_path / f"ptb.{part}.txt").write_text("a b c\n")
    assert message(text.load, "ptb", tmp_path) == (
        f"data: Penn Treebank has 3 different words, the files in {str(tmp_path)!r} have 4; they are another text, or "
        "another edition of it"
    )


def test_a_text_that_is_cut_off(tmp_path):
    for part in text.PARTS:
        (tmp_path / f"{part}.txt.gz").write_bytes(gzip.compress(b"some words here\n" * 50)[:-12])
    assert "it may be cut off, so get it again" in message(text.load, "wikitext2", tmp_path)


def test_a_folder_without_the_text(tmp_path):
    assert message(text.load, "wikitext2", tmp_path) == (
        f"data: no WikiText-2 in {str(tmp_path)!r}; --data-dir must hold wiki.train.tokens or train.txt or "
        "train.txt.gz, and valid and test alike, or use --synthetic"
    )


def test_shakespeare_by_characters(tmp_path):
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_bytes(b"cab" * 20)
    loaded = text.shakespeare(tmp_path)
    assert loaded.words == 3
    assert [len(part) for part in (loaded.train, loaded.valid, loaded.test)] == [54, 3, 3]
    assert loaded.train[:4].tolist() == [2, 0, 1, 2]
    elsewhere = Path(__file__).parent
    assert message(text.shakespeare, elsewhere) == (
        f"data: no tiny Shakespeare in {str(elsewhere)!r}; --data-dir must hold input.txt, or use --synthetic"
    )


# --- DAGM


def png(array):
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def dagm_files():
    grey = {part: np.full((16, 16), value, np.uint8) for part, value in (("Train", 40), ("Test", 80))}
    mask = np.zeros((16, 16), np.uint8)
    mask[2:5, 3:9] = 255
    files = {}
    for part, image in grey.items():
        files[f"Class1/{part}/0001.PNG"] = png(image)
        files[f"Class1/{part}/0002.PNG"] = png(image + 1)
        files[f"Class1/{part}/Label/0002_label.PNG"] = png(mask)
        files[f"Class1/{part}/Label/Labels.txt"] = b"1\n"
    return files, mask // 255


def assert_surfaces(data, mask):
    assert data.train[:, 0, 0].tolist() == [40, 41]
    assert data.test[:, 0, 0].tolist() == [80, 81]
    for masks in (data.train_masks, data.test_masks):
        assert masks[0].sum() == 0
        assert np.array_equal(masks[1].numpy(), mask)


def test_dagm_as_published(tmp_path):
    files, mask = dagm_files()
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    packed_up = tmp_path / "packed"
    packed_up.mkdir()
    with zipfile.ZipFile(packed_up / "Class1.zip", "w") as file:
        for path, content in files.items():
            file.writestr(path, content)
    for place in (tmp_path, tmp_path / "Class1", packed_up):
        assert_surfaces(dagm.load(place), mask)


def test_dagm_from_the_compact_form(tmp_path):
    _, mask = dagm_files()
    folder = tmp_path / "dagm2007_class1"
    folder.mkdir()
    masks = np.packbits(np.stack([np.zeros_like(mask), mask]), axis=-1)
    for part, value in (("train", 40), ("test", 80)):
        images = np.stack([np.full((16, 16), value + i, np.uint8) for i in range(2)])
        np.savez(folder / f"{part}.npz", x=images, m=masks)
    for place in (tmp_path, folder):
        assert_surfaces(dagm.load(place), mask)


def test_a_picture_that_is_none(tmp_path):
    for part in ("Train", "Test"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "1.png").write_bytes(b"not a picture")
    assert "'Test/1.png' is not a readable PNG" in message(dagm.load, tmp_path)


@pytest.mark.parametrize(
    "package, said",
    [
        (
            "PIL",
            "data: PNG images need Pillow, which is not installed; run: pip install pillow, or use the compact form",
        ),
        (
            "numpy",
            "data: reading data sets needs numpy, which is not installed; run: pip install numpy",
        ),
    ],
)
def test_a_missing_package_is_named(package, said, tmp_path, monkeypatch):
    for path, content in dagm_files()[0].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        dagm.load(tmp_path)
    assert str(caught.value) == said
