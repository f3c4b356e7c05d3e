"""Who may import whom. A new arrow is a design decision: change the tables in the same commit."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "gradwire"
FILES = sorted(ROOT.rglob("*.py"))


def part_of(path):
    """The first folder or file; of the laboratory, the folder in it."""
    names = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(names[:2]) if names[0] == "laboratory" and len(names) > 2 else names[0]


# part -> the parts it may import, beside itself
MAY_IMPORT = {
    "core": set(),
    "kernels": {"core"},
    "codecs": {"core", "kernels"},
    "memory": {"core", "kernels"},
    "collectives": {"core", "kernels"},
    "models": {"core"},
    "laboratory": set(),
    "laboratory.hosts": {"core"},
    "grace": {"core", "kernels"},
    "adaptive": {"core"},
    "trackers": {"core"},
    "unit": {"core", "memory", "collectives"},
    "setup": {"core", "memory", "collectives", "adaptive", "unit"},
    "graphs": {"core", "kernels", "collectives", "unit"},
    "steps": {"core", "kernels", "memory", "collectives", "adaptive", "unit", "setup", "graphs"},
    "engine": {"core", "kernels", "memory", "collectives", "adaptive", "unit", "setup", "graphs", "steps"},
    "saved_state": {"core"},
    "checkpoint": {"core", "memory", "collectives", "setup", "engine", "saved_state"},
    "sharded": {"core", "collectives", "unit", "engine"},
    "session": {"unit", "sharded", "core", "memory", "collectives", "adaptive", "engine", "checkpoint"},
    "cluster": {"core", "memory", "collectives", "adaptive", "engine", "checkpoint"},
    "tracing": {"core", "kernels", "collectives", "engine"},
    "conformance": {"core", "kernels", "collectives", "engine", "checkpoint", "cluster", "tracing"},
    "planner": {"core", "collectives", "tracing", "models"},
    "diagnosis": {"core", "collectives", "integrations", "planner"},
    "laboratory.report": {"core", "planner"},
    "laboratory.reproduce": {"core", "planner"},
    "laboratory.explore": {"core", "planner", "laboratory.report"},
    # the planner knows which codecs are safe, and must answer without torch: it never looks back at integrations
    "integrations": {
        *("core", "kernels", "memory", "adaptive", "engine", "checkpoint", "saved_state", "session", "sharded"),
        *("tracing", "trackers", "planner"),
    },
    "trainers": {"core", "integrations"},
    "frameworks": {
        *("core", "kernels", "codecs", "memory", "collectives", "engine", "checkpoint", "session", "trainers"),
    },
    "laboratory.bench": {
        "core",
        "kernels",
        "collectives",
        "memory",
        "adaptive",
        "trackers",
        "unit",
        "engine",
        "sharded",
        "cluster",
        "tracing",
        "integrations",
        "frameworks",
        "models",
        "planner",
        "laboratory.hosts",
        "laboratory.reproduce",
    },
    "cli": {
        "core",
        "collectives",
        "conformance",
        "tracing",
        "trackers",
        "models",
        "planner",
        "diagnosis",
        "laboratory.bench",
        "laboratory.hosts",
        "laboratory.explore",
        "laboratory.report",
        "laboratory.reproduce",
    },
    "__main__": {"cli"},
    "__init__": {
        "core",
        "adaptive",
        "cluster",
        "collectives",
        "diagnosis",
        "grace",
        "integrations",
        "planner",
        "trackers",
    },
}
# outside package -> where it may be imported
OUTSIDE = {
    "triton": ["kernels/*/gpu.py"],
    "numba": ["kernels/jit.py", "kernels/*/cpu.py", "kernels/*/one_pass.py"],
    "llvmlite": ["kernels/*/cpu.py", "kernels/*/one_pass.py"],
    "torch.distributed": [
        "collectives/c10d.py",
        "collectives/channel.py",
        "session.py",
        "integrations/*.py",
        "trainers/*.py",
        "frameworks/*.py",
        "diagnosis/*.py",
        "laboratory/bench/*.py",
        "laboratory/bench/tasks/*.py",
    ],
    "torch.multiprocessing": ["laboratory/bench/*.py"],
    "multiprocessing": ["laboratory/bench/*.py"],
    "subprocess": ["diagnosis/job.py", "laboratory/bench/*.py", "core/environment.py", "laboratory/hosts/*.py"],
    "typer": ["cli/*.py", "cli/bench/*.py"],
    "rich": ["cli/*.py", "cli/bench/*.py"],
    "numpy": [
        "kernels/*/cpu.py",
        "kernels/*/one_pass.py",
        "laboratory/bench/data/*.py",
        "laboratory/bench/frameworks.py",
    ],
    "matplotlib": ["laboratory/report/*.py"],
    "nicegui": ["laboratory/explore/server.py"],
    "jax": ["frameworks/*.py"],
    "tensorflow": ["frameworks/*.py"],
    "keras": ["frameworks/*.py"],
    "lightning": ["trainers/lightning.py"],
    "transformers": ["trainers/huggingface.py"],
}
# parts that must load without torch, but for the files in which controllers meet tensors, models are traced, or ranks
# are watched
WITHOUT_TORCH = (
    *("planner", "diagnosis", "laboratory.explore", "laboratory.report", "laboratory.reproduce"),
    *("adaptive", "trackers"),
)
WATCHING = ("doctor", "policies", "rank", "surroundings", "watcher")
WITH_TORCH = [
    ROOT / "adaptive" / "steering.py",
    ROOT / "planner" / "own_kind.py",
    ROOT / "planner" / "own_workloads.py",
    *(ROOT / "diagnosis" / f"{name}.py" for name in WATCHING),
]
TORCH_FREE = [
    *("core/errors.py", "core/registry.py", "core/random.py", "core/units.py", "core/records.py", "core/wire.py"),
    *("core/baselines.py", "core/search.py"),
    *(str(f.relative_to(ROOT)) for f in FILES if part_of(f) in WITHOUT_TORCH and f not in WITH_TORCH),
]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def imports(path, *, top_level_only=False):
    tree = parsed(path)
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path):
    part = part_of(path)
    names = [n.split(".") for n in imports(path) if n.startswith("gradwire.")]
    wanted = {part for n in names for part in (n[1], ".".join(n[1:3])) if part in MAY_IMPORT} - {"laboratory"}
    assert wanted <= MAY_IMPORT[part] | {part}, f"{part} may import {sorted(MAY_IMPORT[part])}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_outside_packages_stay_where_they_belong(path):
    for package, places in OUTSIDE.items():
        used = any(n == package or n.startswith(package + ".") for n in imports(path))
        assert not used or any(path.relative_to(ROOT).match(p) for p in places), f"{package} in {name_of(path)}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_light_modules_do_not_need_torch(name):
    assert not any(n.split(".")[0] == "torch" for n in imports(ROOT / name, top_level_only=True))


def test_every_part_is_in_the_table():
    assert {part_of(f) for f in FILES} == set(MAY_IMPORT)


def test_every_codec_file_is_in_the_catalogue():
    files = {f.stem for f in (ROOT / "codecs").rglob("*.py") if not f.name.startswith("_")}
    listed = {n.split(".")[-2] for n in imports(ROOT / "codecs" / "__init__.py")}
    assert files == listed


def test_no_codec_is_treated_by_its_name():
    """Dispatch is on traits. `if codec.name == ...` would be a special case that the next codec does not get."""
    for path in FILES:
        if part_of(path) in {"engine", "cluster", "tracing", "integrations", "collectives", "memory", "core"}:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute):
                    literal = any(isinstance(c, ast.Constant) and isinstance(c.value, str) for c in node.comparators)
                    assert not (node.left.attr == "name" and literal), f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_readable(path):
    assert len(path.read_text().splitlines()) <= 400
