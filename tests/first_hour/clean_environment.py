"""A clean environment with the wheel that `make dist` builds, and the commands that pages tell people to type there.

The environment is a virtual one. Its dependencies are links to those of the environment that runs the tests: just the
packages that the wheel asks for, and what these ask for, so that nothing has to be fetched.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
PLAY = """
import json, os, sys
from gradwire.cli import main
for words in json.loads(sys.argv[1]):
    if words[0] == "cd":
        os.chdir(words[1])
        continue
    print(">", *words, flush=True)
    if main(words[1:]):
        sys.exit(f"stopped at: {' '.join(words)}")
"""


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=280, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(tree):
    """As `make dist`, of a copy of the sources, with the packages that are here; the folder of what was built."""
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.nb?"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", tree)
    return tree / "dist"


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


def typed(page, heading):
    """The command lines under a heading of a page, in order, each as its words."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^    ((?:gradwire|cd) .*)", text.replace("\\\n", ""), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


def play(environment, folder, commands, **variables):
    """Type commands in a folder, one after the other; what each has answered.

    They run in one process, which loads torch once.
    """
    python = environment / "bin" / "python"
    done = run(python, "-c", PLAY, json.dumps(commands), cwd=folder, env=clean(**variables))
    return [json.loads(answer.partition("\n")[2]) for answer in done.stdout.split("> gradwire ")[1:]]
