"""What `make dist` builds: it holds every file, and works where nothing but its dependencies is installed."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile

import pytest
from clean_environment import ROOT, add_dependencies, clean, environment, run

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire

rank, place = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{place}", rank=int(rank), world_size=2)
model = DistributedDataParallel(torch.nn.Linear(64, 63))
handle = gradwire.attach(model, "eightbit")
model(torch.full((2, 64), 1.0 + int(rank))).sum().backward()
print(handle.stats()["codec"], gradwire.__file__)
dist.destroy_process_group()
"""
SLOW = "gradwire: without Numba codecs run in plain torch on the CPU, several times slower; pip install numba"


def test_wheel_and_sources_hold_every_file(dist):
    files = (f for f in (ROOT / "src").rglob("*") if f.is_file())
    parts = (f.relative_to(ROOT / "src") for f in files)
    ours = {str(f) for f in parts if f.parts[0] == "gradwire" and "__pycache__" not in f.parts}
    assert {"gradwire/py.typed", "gradwire/planner/data/h200.toml"} <= ours
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        assert {n for n in wheel.namelist() if n.startswith("gradwire/")} == ours
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sources:
        inside = {name.partition("/")[2] for name in sources.getnames()}
    assert {f"src/{name}" for name in ours} | {"LICENSE", "README.md", "pyproject.toml"} <= inside


def trained(programs, folder):
    """What two ranks say of a step with `attach`."""
    (folder / "train.py").write_text(TRAIN)
    ranks = [
        subprocess.Popen(
            [programs / "python", "train.py", str(rank), folder / "store"],
            **{"cwd": folder, "env": clean(RANK=str(rank)), "text": True},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
        )
        for rank in range(2)
    ]
    told = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    return told


@pytest.mark.dist
def test_it_works_with_its_dependencies_alone(dist, tmp_path):
    folder = environment(tmp_path / "env", dist)
    programs = folder / "bin"
    add_dependencies(folder)
    told = trained(programs, tmp_path)
    for out, _ in told:
        assert out.startswith(f"eightbit {folder}")
    assert [err.count(SLOW) for _, err in told] == [1, 0]  # once, by rank 0
    assert all("Numpy is not available" not in err for _, err in told)
    refused = subprocess.run([programs / "gradwire", "--help"], capture_output=True, text=True, env=clean(), timeout=60)
    assert (refused.returncode, refused.stderr) == (
        1,
        "gradwire: the command line needs rich, which is not installed; run: pip install typer rich\n",
    )
    add_dependencies(folder, "cli")
    assert "Commands:" in run(programs / "gradwire", "--help", env=clean(), cwd=tmp_path).stdout
    question = ["--model", "resnet50", "--batch", "64", "--gpus", "16", "--bandwidth", "10gbit"]
    answer = run(programs / "gradwire", "advise", *question, env=clean(), cwd=tmp_path)
    assert '"verdict"' in answer.stdout
