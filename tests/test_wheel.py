"""What `make dist` builds: it holds every file, and works where nothing but its dependencies is installed.

The clean environment is a virtual one. Its dependencies are links to those of the environment that runs the tests: just
the packages that the wheel asks for, and what these ask for, so that nothing has to be fetched.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
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


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """As `make dist`, of a copy of the tree, with the packages that are here."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", tree)
    return tree / "dist"


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


def asked_for(requirements, extra=""):
    """The distributions that requirements bring, with what they bring themselves."""
    found, waiting = set(), [(r, extra) for r in requirements]
    while waiting:
        text, of = waiting.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of}):
            continue
        if name not in found:
            found.add(name)
            waiting += [(r, e) for r in importlib.metadata.requires(name) or () for e in ("", *requirement.extras)]
    return found


def environment(folder, dist):
    """A virtual environment with the wheel and nothing else."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    options = ("--no-index", "--no-deps", "--no-compile")
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", *options, next(dist.glob("*.whl")))
    return folder


def add_dependencies(folder, extra=""):
    """Link what the installed wheel asks for, by itself or with an extra."""
    [site] = folder.glob("lib/python*/site-packages")
    [metadata] = importlib.metadata.distributions(name="gradwire", path=[str(site)])
    for name in asked_for(metadata.requires or (), extra):
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))


def clean(**more):
    """The variables of a shell that knows nothing of this tree."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONWARNINGS")} | more


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
