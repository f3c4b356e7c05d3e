"""The practitioner: a model of one's own, asked about, trained with compression, compared with what was predicted."""

from __future__ import annotations

import re

import pytest
from clean_environment import ROOT, clean, play, run, typed

from test_docs import snippets

PAGE = "docs/api/training.md"
QUICK = ["--rate", "loopback", "--seconds", "0.05", "--codec", "eightbit", "--force"]  # force: a busy machine
BEGIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
dist.init_process_group("gloo")
"""
TRACKED = '    tracker="tensorboard:runs/eightbit",\n'  # an extra of its own; tests/test_training_page.py writes there


@pytest.mark.dist
def test_own_model_and_own_training(installed, tmp_path):
    [model] = [s for s in snippets("docs/start.md") if s.startswith("# my_nets.py\n")]
    (tmp_path / "my_nets.py").write_text(model)
    size, calibrate, advise = typed("docs/start.md", "Ask for your own model")
    setup = advise[advise.index("--model") :]
    step = "gradwire bench step --batch 8 --steps 8 --hosts 2 --rate loopback --codec eightbit --model my_nets:small"
    predict = ["gradwire", "predict", *setup, "--codec", "eightbit"]
    commands = [size, [*calibrate, *QUICK], advise, predict, step.split()]
    sized, calibrated, advised, predicted, stepped = play(installed, tmp_path, commands)
    assert sized["elements"] == sum(p.numel() for p in small(model).parameters())
    assert list(calibrated["models"]) == ["my_nets:small"]
    assert "eightbit" in calibrated["codecs"]
    assert advised["verdict"]["kind"] in ("worth it", "not worth it")
    assert predicted["setup"]["hardware"] == "this-machine"
    assert {row["codec"] for row in predicted["predictions"]} >= {"none", "eightbit"}
    assert stepped

    [watched] = [s for s in snippets(PAGE) if "handle.watch(" in s]
    assert TRACKED in watched
    own = watched.replace(TRACKED, "").replace("mymodel:transformer", "my_nets:small")
    (tmp_path / "train.py").write_text(f"{BEGIN}{own}\ndist.destroy_process_group()\n")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    trained = run(installed / "bin" / "python", *torchrun, cwd=tmp_path, env=clean(OMP_NUM_THREADS="1"))
    assert "gradwire step 20: eightbit sends " in trained.stderr
    assert "gradwire.Handle: eightbit, memory error_feedback" in trained.stdout

    report, validate = (line.split() for line in inline("gradwire report run.jsonl", "gradwire validate run.jsonl"))
    assert validate[-1] == "PROFILE"
    commands = [[*report, "-o", "report.html"], [*validate[:-1], "this-machine"]]
    reported, validated = play(installed, tmp_path, commands)
    assert reported["records"] == {"training": 2}
    assert (tmp_path / "report.html").stat().st_size == reported["bytes"]
    [compared] = validated["predictions"]
    assert (compared["model"], compared["configuration"]) == ("my_nets:small", "eightbit")
    assert compared["predicted_seconds"] > 0


def small(source):
    """The model that a page defines."""
    names = {}
    exec(source, names)
    return names["small"]()


def inline(*beginnings):
    """Commands that stand in the page's text."""
    text = " ".join((ROOT / PAGE).read_text(encoding="utf-8").split())
    found = re.findall(r"`(gradwire [^`]*)`", text)
    return [next(command for command in found if command.startswith(start)) for start in beginnings]
