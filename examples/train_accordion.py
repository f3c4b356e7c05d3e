"""Train with Accordion: little compression in critical regimes of training, a lot elsewhere, layer by layer.

    torchrun --standalone --nproc-per-node 2 examples/train_accordion.py
    torchrun --standalone --nproc-per-node 2 examples/train_accordion.py --low fp16 --high "topk(ratio=0.01)"
    torchrun --standalone --nproc-per-node 2 examples/train_accordion.py --tracker tensorboard:runs/accordion

The lines marked `# gradwire` are the whole difference to plain DDP. A controller looks at the norms of the gradients
and at the learning rate once an epoch: call `end_epoch` on all ranks, when the scheduler has set the next epoch's rate.
Runs on CPUs over gloo, on images that are drawn as they are needed; an epoch is short here, so the norms are compared
every second epoch, and not every tenth.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire  # gradwire
from gradwire.laboratory.bench.tasks import shapes
from gradwire.trackers import handle_values  # gradwire

BATCH = 32  # images a step on each rank
STEPS = 8  # an epoch
HELD_OUT = 1 << 30  # a seed that no training step reaches


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = DistributedDataParallel(shapes.model(seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2 * options.epochs // 3], gamma=0.1)
    accordion = gradwire.Accordion(low=options.low, high=options.high, every=2)  # gradwire
    handle = gradwire.attach(model, controller=accordion, optimizer=optimizer)  # gradwire

    with gradwire.open_tracker(options.tracker if rank == 0 else "none") as tracker:  # gradwire
        for epoch in range(options.epochs):
            rate = scheduler.get_last_lr()[0]
            loss = train(model, optimizer, epoch)
            scheduler.step()
            handle.end_epoch()  # gradwire
            stats = handle.stats()  # gradwire
            tracker.log(epoch, {"train_loss": loss} | handle_values(handle))  # gradwire
            if rank == 0:
                report(epoch, rate, loss, stats)
    accuracy = evaluate(model)
    if rank == 0:
        print(f"held-out accuracy {accuracy:.4f}, {stats['sent_bytes'] / 1e6:.2f} MB sent by rank 0")
    dist.destroy_process_group()


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, epoch: int) -> float:
    """One epoch; returns this rank's mean loss."""
    rank, workers, total = dist.get_rank(), dist.get_world_size(), 0.0
    for step in range(epoch * STEPS, (epoch + 1) * STEPS):
        images, labels = shapes.data(BATCH, seed=step * workers + rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item() / STEPS
    return total


def report(epoch: int, rate: float, loss: float, stats: dict[str, Any]) -> None:
    """What the epoch was like, and what its end changed."""
    print(f"epoch {epoch}: learning rate {rate:g}, loss {loss:.4f}, next: {stats['levels']}", flush=True)
    for switch in stats["switches"]:
        if switch["epoch"] == epoch:
            name = "all parameters" if switch["parameter"] == "*" else switch["parameter"]
            print(f"  {name}: {switch['from']} -> {switch['to']} ({switch['why']})", flush=True)


@torch.no_grad()
def evaluate(model: DistributedDataParallel) -> float:
    """Accuracy on images that training never saw."""
    images, labels = shapes.data(1024, seed=HELD_OUT)
    return float((model.module(images).argmax(1) == labels).float().mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--low", default="powersgd(rank=4)", help="the codec of critical regimes")
    parser.add_argument("--high", default="powersgd(rank=1)", help="the codec of all others")
    parser.add_argument("--epochs", type=int, default=12, help="the rate falls after two thirds of them")
    parser.add_argument(
        "--tracker", default="none", help="none, tensorboard:FOLDER, wandb:PROJECT or mlflow:EXPERIMENT"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
