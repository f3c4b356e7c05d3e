"""Train with Ray Train: one worker on each node of a Ray cluster, compressed gradients between them.

    pip install 'ray[train]'
    ray start --head                                # on the first node; it prints what to run on the others
    RAY_ADDRESS=auto python examples/engines/ray_train.py --steps 300 --save-every 20 --folder /shared/run

It trains what examples/train_ddp.py does, with the same options. If a worker dies, Ray starts all of them again, three
times at most, and they go on from the newest checkpoint: its folder must be one that all nodes see.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device

sys.path.insert(0, str(Path(__file__).parents[1]))
import train_ddp


def main() -> None:
    options = vars(train_ddp.parse())
    options["folder"] = options["folder"].absolute()  # workers run in folders of their own
    ray.init(runtime_env={"py_modules": [train_ddp.__file__]})
    nodes = sum(node["Alive"] for node in ray.nodes())
    trainer = TorchTrainer(
        work,
        train_loop_config=options,
        scaling_config=ScalingConfig(
            num_workers=nodes,
            placement_strategy="STRICT_SPREAD",  # each on a node of its own
            use_gpu=ray.cluster_resources().get("GPU", 0) >= nodes,
        ),
        run_config=RunConfig(
            storage_path=str(options["folder"]), name="ray", failure_config=FailureConfig(max_failures=3)
        ),
    )
    trainer.fit()


def work(options: dict[str, Any]) -> None:
    """What each worker does; Ray has made the process group."""
    train_ddp.train(argparse.Namespace(**options), get_device())


if __name__ == "__main__":
    main()
