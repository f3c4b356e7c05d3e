"""A job for `gradwire doctor`: CAUSE STEPS [EXIT CODE]. As few layers as will do."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(cause: str, steps: int, code: int) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 200))
    model = net if cause == "no DDP" else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        if cause == "straggler":
            time.sleep(0.1 if dist.get_rank() == 1 else 0.02)
        model(torch.ones(2, 200)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"sum {sum(float(p.double().sum()) for p in net.parameters()).hex()}", flush=True)
    dist.barrier()  # else the first to fail ends the others
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
