"""`gradwire size`: published numbers, own models, and what it refuses."""

from __future__ import annotations

import json
import sys

import pytest

from gradwire import models
from gradwire.cli import main

KEYS = {
    "model", "codec", "workers", "elements", "payload_bytes", "payload_floats", "bits_per_element", "ratio_to_fp32",
    "sent_bytes_per_worker", "node_bytes_per_worker", "rounds", "exchanges",
}  # fmt: skip


def answer(capsys, *arguments):
    assert main(["size", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_powersgd_on_resnet18_sends_the_published_number_of_floats(capsys):
    found = answer(capsys, "--model", "resnet18-cifar10", "--codec", "powersgd(rank=2)")
    assert set(found) == KEYS
    assert found["payload_floats"] == 82_260 == 36_325 * 2 + 9_610
    assert round(found["payload_floats"] * 29_400 / 1e6, 1) == 2418.4  # Accordion, over a whole training
    assert found["elements"] == 11_173_962
    assert found["rounds"] == 2
    assert sum(e["payload_bytes"] for e in found["exchanges"]) == found["payload_bytes"] == 4 * 82_260


def test_bytes_of_the_baseline(capsys):
    found = answer(capsys, "--model", "resnet20", "--codec", "none", "--workers", "8")
    assert found["payload_bytes"] == 4 * found["elements"]
    assert found["ratio_to_fp32"] == 1.0
    assert found["sent_bytes_per_worker"] == pytest.approx(2 * 7 / 8 * found["payload_bytes"])


def test_strategy_and_compress_are_passed_on(capsys):
    common = ("--model", "resnet20", "--codec", "signsgd", "--workers", "8")
    gathered = answer(capsys, *common, "--strategy", "all_gather")
    shared = answer(capsys, *common, "--strategy", "scatter_reduce_gather")
    whole = answer(capsys, *common, "--tensors", "all")
    assert gathered["sent_bytes_per_worker"] > shared["sent_bytes_per_worker"]
    assert whole["payload_bytes"] < gathered["payload_bytes"]


def test_nodes_share_what_they_send(capsys, monkeypatch):
    common = ("--model", "resnet20", "--codec", "qsgd", "--tensors", "all")
    alone = answer(capsys, *common, "--workers", "4")
    shared = answer(capsys, *common, "--workers", "16", "--strategy", "hierarchical(per_node=4)")
    assert shared["sent_bytes_per_worker"] == pytest.approx(alone["sent_bytes_per_worker"] / 4, rel=0.05)
    assert shared["node_bytes_per_worker"] == pytest.approx(2 * 3 / 4 * 4 * shared["elements"], rel=0.05)
    assert alone["node_bytes_per_worker"] == 0
    inside = answer(capsys, *common, "--workers", "4", "--strategy", "hierarchical(per_node=4)")
    assert (inside["sent_bytes_per_worker"], inside["ratio_to_fp32"]) == (0, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["size", *common, "--workers", "4", "--strategy", "hierarchical(per_node=4)"]) == 0
    assert f"{inside['node_bytes_per_worker']:,} bytes a worker, uncompressed" in capsys.readouterr().out


def test_the_table(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["size", "--model", "resnet18-cifar10", "--codec", "powersgd(rank=2)"]) == 0
    assert "329,040 bytes (329 kB), 82,260 floats" in capsys.readouterr().out


def test_a_model_of_the_working_directory(capsys, monkeypatch, tmp_path):
    (tmp_path / "size_nets.py").write_text(
        "from torch import nn\n"
        "def small():\n    return nn.Linear(64, 32)\n"
        "def frozen():\n    return nn.Linear(2, 2).requires_grad_(False)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert answer(capsys, "--model", "size_nets:small", "--codec", "none")["elements"] == 64 * 32 + 32
    assert main(["size", "--model", "size_nets:frozen", "--codec", "none"]) == 2
    assert capsys.readouterr().err == (
        "gradwire: model 'size_nets:frozen' has no parameter that is trained, so there is nothing to send\n"
    )


def test_the_help_lists_every_model(capsys):
    assert main(["size", "--help"]) == 0
    section = capsys.readouterr().out.partition("Models:")[2].partition("Example")[0]
    assert sorted(section.split()) == models.names()


@pytest.mark.parametrize(
    "model, codec, options, message",
    [
        ("resnet20", "powersg", [], "gradwire: no codec named 'powersg'; did you mean powersgd?"),
        ("resnet20", "qsgd(levels=0)", [], "gradwire: qsgd: `levels` must be"),
        ("resnet21", "topk", [], "gradwire: no model named 'resnet21'; did you mean resnet20"),
        (
            "no_such_module:net",
            "topk",
            [],
            "gradwire: model 'no_such_module:net': there is no module 'no_such_module' in ",
        ),
        (
            "resnet20",
            "topk",
            ["--workers", "0"],
            "gradwire: size: `--workers` must be a whole number from 1 to 16384, got 0",
        ),
        (
            "resnet20",
            "topk",
            ["--strategy", "all_reduces"],
            "gradwire: no strategy named 'all_reduces'; did you mean all_reduce",
        ),
        (
            "resnet20",
            "topk",
            ["--tensors", "some"],
            "gradwire: `tensors` must be 'matrices' or 'all', got 'some'",
        ),
    ],
)
def test_bad_requests(capsys, monkeypatch, model, codec, options, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["size", "--model", model, "--codec", codec, *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
