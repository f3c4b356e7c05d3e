"""Accelerate: two lines more than without compression, marked.

torchrun --standalone --nproc-per-node 2 examples/train_accelerate.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gradwire.trainers.accelerate  # the first


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs; empty: none attached")
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--save", default=None, help="folder of a checkpoint to write at the end")
    options.add_argument("--resume", default=None, help="folder of a checkpoint to go on from")
    told = options.parse_args()

    torch.manual_seed(0)
    everything = torch.randn(512, 33)
    wanted = everything[:, :7].argmax(dim=1)
    data = DataLoader(TensorDataset(everything, wanted), batch_size=16)
    model = nn.Sequential(nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    handle = gradwire.trainers.accelerate.attach(accelerator, model, told.codec) if told.codec else None  # the second
    if told.resume:
        accelerator.load_state(told.resume)
    for _ in range(told.epochs):
        for x, y in data:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
    if told.save:
        accelerator.save_state(told.save)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(everything.to(accelerator.device)), wanted.to(accelerator.device))
    weights = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    sent = f"{handle.stats()['sent_bytes_per_step']:.0f} bytes sent a step" if handle else "uncompressed"
    accelerator.print(f"loss {loss.item():.6f}, weights {weights:.12f}, {sent}")


if __name__ == "__main__":
    main()
