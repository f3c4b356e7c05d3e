"""Lightning: two lines more than without compression, marked.

torchrun --standalone --nproc-per-node 2 examples/train_lightning.py
torchrun --standalone --nproc-per-node 2 examples/train_lightning.py --sharded   # FSDP2
"""

from __future__ import annotations

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from gradwire.trainers.lightning import Compression  # the first


class Net(LightningModule):
    """Which of the first seven numbers is the largest?"""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.layers, self.sharded = nn.Sequential(nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 7)), sharded

    def configure_model(self) -> None:
        if self.sharded:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs; empty: none attached")
    options.add_argument("--sharded", action="store_true", help="by FSDP2, in place of DDP")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--save", default=None, help="checkpoint to write at the end")
    options.add_argument("--resume", default=None, help="checkpoint to go on from")
    told = options.parse_args()

    torch.manual_seed(0)
    x = torch.randn(512, 33)
    data = DataLoader(TensorDataset(x, x[:, :7].argmax(dim=1)), batch_size=16)
    ranks = int(os.environ.get("WORLD_SIZE", 2))
    model, compression = Net(told.sharded), Compression(told.codec)
    trainer = Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy=ModelParallelStrategy(ranks, 1) if told.sharded else "ddp",
        devices=ranks,
        max_epochs=told.epochs,
        callbacks=[compression] if told.codec else [],  # the second
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path=told.resume)
    if told.save:
        trainer.save_checkpoint(told.save)
    whole = [p.full_tensor() if told.sharded else p for p in model.parameters()]
    weights = sum(float(p.detach().double().abs().sum()) for p in whole)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model.layers(x), x[:, :7].argmax(dim=1))
    if trainer.is_global_zero:
        handle = compression.handle
        sent = f"{handle.stats()['sent_bytes_per_step']:.0f} bytes sent a step" if handle else "uncompressed"
        print(f"loss {loss:.6f}, weights {weights:.12f}, {sent}")


if __name__ == "__main__":
    main()
