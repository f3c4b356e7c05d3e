"""A plain DDP job to try `gradwire doctor` on, and to see whether what it estimates comes true.

gradwire doctor -- gradwire lab --hosts 2 --rate 200mbit -- python examples/diagnose.py
gradwire doctor -- gradwire lab --hosts 2 --rate 200mbit -- python examples/diagnose.py --codec eightbit
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.laboratory.bench.tasks import shapes

BATCH = 32  # images a step on each rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--codec", help="see: gradwire codecs; without it, plain DDP")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(shapes.model(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    if options.codec is not None:
        gradwire.attach(model, options.codec)
    for step in range(options.steps):
        images, labels = shapes.data(BATCH, seed=step * workers + rank)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
