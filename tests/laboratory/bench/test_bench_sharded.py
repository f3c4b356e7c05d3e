"""Steps of sharded models on a real, shaped network: torch's own reduction in the same run, bytes by the interface."""

from __future__ import annotations

import importlib
import io
import json

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.core import records
from gradwire.core.baselines import SHARDED_BF16, SHARDED_FP32, SHARDED_ONCE
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.laboratory.bench import sharded
from gradwire.laboratory.hosts.namespace import missing

SMALL = {"layers": 1, "width": 64, "rates": ("100mbit",), "steps": 8}
LAB = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def page(found):
    console = Console(width=130, file=io.StringIO())
    console.print(importlib.import_module("gradwire.cli.bench.sharded")._page(found))
    return console.file.getvalue()


@LAB
@pytest.mark.dist
@pytest.mark.parametrize("per_host", [1, 2], ids=["fsdp", "hsdp"])
def test_codecs_send_less_than_torch(tmp_path, per_host):
    sweep = sharded.sweep(**SMALL, codecs=("blockint(bits=8)",), hosts=(2,), per_host=per_host)
    found = {r.what["configuration"]: r for r in sweep.run(tmp_path / "r.jsonl")}
    assert records.load(tmp_path / "r.jsonl", {sharded.KIND}) == list(found.values())
    baselines = sharded.SHARDS if per_host == 1 else sharded.REPLICAS
    assert list(found) == [*baselines, "blockint(bits=8)"]

    whole = 4 * found[SHARDED_FP32].what["parameters"]  # bytes of a gradient
    gradients = {SHARDED_FP32: whole, SHARDED_BF16: whole / 2, "blockint(bits=8)": whole / 4}  # sent by each host
    if per_host == 1:  # to the other shard alone, but by gloo's reduce-scatter, which is an all-reduce
        gradients |= {SHARDED_ONCE: whole / 2, "blockint(bits=8)": whole / 8}
    seen = {label: record.outcome["interface_bytes"] for label, record in found.items()}
    for label in list(gradients)[1:]:  # weights that are gathered cancel out
        saved, wanted = seen[SHARDED_FP32] - seen[label], whole - gradients[label]
        assert 0.9 * wanted <= saved <= 1.1 * wanted, label
    shown = page(list(found.values()))
    assert all(f"\n {label} " in shown for label in found)
    assert shown.count(SHARDED_ONCE) == (2 if per_host == 1 else 0)  # a line and a column
    ours = found.pop("blockint(bits=8)")
    assert gradients["blockint(bits=8)"] <= per_host * ours.outcome["sent_bytes"] <= 1.1 * gradients["blockint(bits=8)"]
    assert ours.outcome["parts_seconds"]["communicate"] > 0
    for record in found.values():
        assert record.outcome["sent_bytes"] is record.outcome["parts_seconds"]["communicate"] is None
        assert len(record.samples) == 8 - record.outcome["dropped"] == 5


@pytest.mark.dist
def test_the_command(capsys):
    options = ["--hosts", "2", "--rate", "loopback", "--layers", "1", "--width", "32", "--codec", "bf16"]
    assert main(["bench", "sharded", *options, "--seconds", "1e-9"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [m["configuration"] for m in shown["measured"]] == [*sharded.SHARDS, "bf16"]
    assert shown["command"] == (
        'gradwire bench sharded --codec "bf16" --hosts 2 --rate loopback --layers 1 --width 32 --batch 1 '
        "--gpus-per-host 1 --steps 60 --seconds 1e-09"
    )


def test_the_usual_model_has_ten_million_parameters():
    (group,) = sharded.sweep().groups
    assert 10e6 <= group.settings[0]["parameters"] < 10.5e6


def test_bad_requests():
    with pytest.raises(ConfigError, match="`width` must be a multiple of 32, got 100"):
        sharded.sweep(width=100)
    with pytest.raises(Incompatible, match="powersgd cannot run in a reduce-scatter"):
        sharded.sweep(codecs=("powersgd",))
    with pytest.raises(ConfigError, match="`steps` must be a whole number of at least 8, got 7"):
        sharded.sweep(steps=7)
