"""The autopilot on emulated hosts: it takes what is fastest there, and notices when the links change."""

from __future__ import annotations

import json

import pytest
import torch

from gradwire.cli import main
from gradwire.core.baselines import PLAIN
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.laboratory.bench import autopilot
from gradwire.laboratory.hosts.namespace import missing
from gradwire.planner import quality

pytestmark = pytest.mark.dist
LAB = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Tower(torch.nn.Sequential):
    """Little to compute, much to send, and nothing that tells its kind of task."""

    def __init__(self):
        super().__init__(torch.nn.Linear(500, 500), torch.nn.Linear(500, 500))

    def example(self, batch):
        return (torch.randn(batch, 500),)


MODEL = f"{__name__}:Tower"


@LAB
def test_it_chooses_what_pays_and_notices_that_links_have_changed(tmp_path):
    """2 MB of gradients: 6 ms on the wire at 2.5 Gbit/s with plain DDP, 80 ms at 200 Mbit/s."""
    sweep = autopilot.sweep(
        model_names=(MODEL,), batches=(2,), hosts=(2,), rates=("2500mbit",), then="200mbit", steps=12, seconds=0.5
    )
    found = sweep.run(tmp_path / "r.jsonl")
    names = autopilot.configurations(MODEL)
    assert [(r.what["configuration"], r.what["changed_to"]) for r in found] == [
        (name, bits) for bits in (None, 200e6) for name in names
    ]
    assert names == ("auto", PLAIN, *quality.safe(None))
    assert all(r.outcome["replicas_equal"] for r in found)
    before, after = (r for r in found if r.what["configuration"] == "auto")
    assert before.outcome["chose"]
    assert after.outcome["chose"]
    assert after.outcome["choice"] in quality.safe(None)
    assert after.outcome["over_plain"] < 1
    assert after.outcome["best"] in names[1:]  # how near it comes is for a quiet machine, and the command
    plain = {r.what["changed_to"]: r.quantiles.p50 for r in found if r.what["configuration"] == PLAIN}
    assert plain[200e6] > 0.07
    assert plain[200e6] > 2 * plain[None]
    assert [line.partition(" after ")[0] for line in autopilot.verdicts([after])] == [
        f"The autopilot has {after.outcome['choice']}"
    ]
    assert sweep.run(tmp_path / "r.jsonl") == found  # all of it is there


def test_the_command(capsys, tmp_path):
    path = tmp_path / "autopilot.jsonl"
    arguments = ["--model", MODEL, "--hosts", "2", "--rate", "loopback", "--steps", "12", "--record", str(path)]
    assert main(["bench", "autopilot", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["command"] == (
        f"gradwire bench autopilot --model {MODEL} --batch 4 --hosts 2 --rate loopback --gpus-per-host 1 --steps 12"
    )
    assert [m["configuration"] for m in shown["measured"]] == list(autopilot.configurations(MODEL))
    first = shown["measured"][0]
    assert first["best"] in autopilot.configurations(MODEL)[1:]
    assert first["trial_steps"] > 50
    assert len(path.read_text().splitlines()) == len(shown["measured"])


def test_bad_requests():
    with pytest.raises(UnknownName, match="no model named 'resnet21'"):
        autopilot.sweep(model_names=("resnet21",))
    with pytest.raises(ConfigError, match="`steps` must be a whole number of at least 12, got 7"):
        autopilot.sweep(steps=7)
    with pytest.raises(ConfigError, match="loopback has no rate that could change"):
        autopilot.sweep(rates=("loopback",), then="100mbit")
