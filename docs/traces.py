"""Makes src/gradwire/planner/data/traces.json.gz: what every codec of the catalogue sends on every model of it.

    python docs/traces.py              # codecs and models that are not in it yet: a minute for one codec
    python docs/traces.py topk dgc     # these codecs anew, after a change of what they send
    python docs/traces.py --all        # everything, after a change of a strategy or a model: twenty minutes on one core

tests/planner/test_workload.py says when it is out of date. Models are traced side by side.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from gradwire import models
from gradwire.core.codec import codecs
from gradwire.planner import own_workloads as workloads
from gradwire.planner.workload import shipped

TARGET = Path(__file__).parent.parent / "src" / "gradwire" / "planner" / "data" / "traces.json.gz"


def one(model: str, specs: list[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    return workloads.catalogue([model], specs)


def wanted(arguments: list[str], kept: dict[str, Any]) -> dict[str, list[str]]:
    """Which codecs are to be traced on which models."""
    every = [*codecs.names(), *workloads.VARIANTS]
    if arguments == ["--all"]:
        return {model: every for model in models.names()}
    chosen = [c for c in every if c in arguments or c.partition("(")[0] in arguments]
    return {model: chosen or [c for c in every if c not in kept["traces"].get(model, {})] for model in models.names()}


def main(arguments: list[str]) -> None:
    content: dict[str, Any] = {"models": {}, "codecs": {}, "traces": {}}
    if arguments != ["--all"] and TARGET.exists():
        content = shipped().content()
    todo = {model: specs for model, specs in wanted(arguments, content).items() if specs}
    with ProcessPoolExecutor(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        for model, found in zip(todo, pool.map(one, todo, todo.values()), strict=True):
            print(f"{model}: {len(todo[model])} codecs", flush=True)
            content["models"][model] = found["models"][model]
            content["codecs"] |= found["codecs"]
            content["traces"][model] = content["traces"].get(model, {}) | found["traces"][model]
    common = {"work": workloads.work(), "inside": workloads.inside()}
    if todo or any(content.get(key) != found for key, found in common.items()):
        content |= common
        TARGET.write_bytes(workloads.dump(content))


if __name__ == "__main__":
    main(sys.argv[1:])
