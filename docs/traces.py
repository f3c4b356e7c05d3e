"""Makes src/gradwire/perf/data/traces.json.gz: what every codec of the catalogue sends on every model of it.

Run by `make traces` after a codec, a strategy or a model has changed; tests/perf/test_workload.py says when. It takes
about half an hour on one core; models are traced side by side.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from gradwire import models, workloads

TARGET = Path(__file__).parent.parent / "src" / "gradwire" / "perf" / "data" / "traces.json.gz"


def one(model: str) -> dict[str, object]:
    torch.set_num_threads(1)
    return workloads.catalogue([model])


def main() -> None:
    content: dict[str, dict[str, object]] = {"models": {}, "codecs": {}, "traces": {}}
    with ProcessPoolExecutor(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        for model, found in zip(models.names(), pool.map(one, models.names()), strict=True):
            print(model, flush=True)
            for part in content:
                content[part] |= found[part]  # type: ignore[operator]
    TARGET.write_bytes(workloads.dump(content))


if __name__ == "__main__":
    main()
