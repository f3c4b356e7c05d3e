"""Train with DistributedDataParallel and compressed gradients, save, and continue.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --steps 300      # goes on from step 100
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --codec "powersgd(rank=4)" --folder powersgd
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --codec auto --steps 300 --folder auto
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py --folder safe --save-every 20

The lines marked `# gradwire` are the whole difference to plain DDP. Each rank keeps what its codec has not sent yet, so
each rank saves a file of its own beside the model's. A run that finds a checkpoint continues from it, also when
torchrun restarts it after a crash, and ends bit for bit as if it had never stopped. With ``--codec auto`` gradwire
finds out what is fastest, and a continued run keeps that choice. Runs on CPUs over gloo, and over NCCL where there are
GPUs; on several machines the folder must be one that all of them see.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire  # gradwire
from gradwire.laboratory.bench.tasks import shapes

BATCH = 32  # images a step on each rank
HELD_OUT = 1 << 30  # a seed that no training step reaches


def main() -> None:
    train(parse(), start())
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train on the process group that is there: ours, or that of an engine such as Ray."""
    rank, workers = dist.get_rank(), dist.get_world_size()

    model = DistributedDataParallel(shapes.model(seed=0).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    handle = gradwire.attach(model, options.codec)  # gradwire

    done = load(options.folder, model, optimizer, handle)
    for step in range(done, options.steps):
        # Images follow from step and rank alone, so a continued run sees what it would have seen.
        images, labels = shapes.data(BATCH, seed=step * workers + rank)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
        if step + 1 == options.steps or (options.save_every and (step + 1) % options.save_every == 0):
            save(options.folder, step + 1, model, optimizer, handle)

    if rank == 0:
        report(model, handle, device)


def save(
    folder: Path,
    step: int,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    handle: gradwire.Handle,
) -> None:
    """The model once, the compression state once a rank, into a folder that gets its name when all of it is there.

    So a crash at any moment leaves a whole checkpoint: the one before, or this one.
    """
    rank, workers = dist.get_rank(), dist.get_world_size()
    draft = folder / f"draft_{step}"
    draft.mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), draft / f"compression_{rank}_of_{workers}.pt")  # gradwire
    if rank == 0:
        state = {"step": step, "workers": workers, "model": model.module.state_dict()}
        torch.save(state | {"optimizer": optimizer.state_dict()}, draft / "model.pt")
    dist.barrier()  # all have written
    if rank == 0:
        older = [f for f in (*folder.glob("step_*"), *folder.glob("draft_*")) if f != draft]
        draft.rename(folder / f"step_{step}")
        for path in older:
            shutil.rmtree(path)


def load(
    folder: Path,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    handle: gradwire.Handle,
) -> int:
    """Continue from the newest checkpoint, if any, also with another number of workers; returns the steps done."""
    checkpoints = sorted(folder.glob("step_*"), key=lambda f: int(f.name.removeprefix("step_")))
    if not checkpoints:
        return 0
    saved = torch.load(checkpoints[-1] / "model.pt", map_location="cpu", weights_only=True)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    files = [checkpoints[-1] / f"compression_{r}_of_{saved['workers']}.pt" for r in range(saved["workers"])]  # gradwire
    handle.load_state_dict([torch.load(f, weights_only=True) for f in files])  # gradwire
    if dist.get_rank() == 0:
        print(f"continuing from {checkpoints[-1]}", flush=True)
    return int(saved["step"])


@torch.no_grad()
def report(model: DistributedDataParallel, handle: gradwire.Handle, device: torch.device) -> None:
    """Accuracy on images that training never saw, and what was sent."""
    images, labels = shapes.data(1024, seed=HELD_OUT)
    right = model.module(images.to(device)).argmax(1).cpu() == labels
    print(f"held-out accuracy {right.float().mean():.4f}")
    stats = handle.stats()  # gradwire
    print(f"{stats['codec']}: {stats['sent_bytes_per_step']:,.0f} bytes a step sent by rank 0")  # gradwire


def start() -> torch.device:
    """Join the process group that torchrun describes."""
    store, rank, workers = next(dist.rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun keeps its store over a restart, and with it the addresses of ranks that are no more. Nodes count
        # restarts apart, so on several let each start have a store of its own: see engines/torchrun.sh
        store = dist.PrefixStore(f"attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):  # NCCL wants a GPU for each rank
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", store=store, rank=rank, world_size=workers, device_id=device)
        return device
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    return torch.device("cpu")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs; auto: find out")
    parser.add_argument("--steps", type=int, default=100, help="up to which step to train")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint"), help="where the checkpoint lies")
    parser.add_argument("--save-every", type=int, default=0, help="steps; 0: only at the end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
