"""The Trainer of Hugging Face: two lines more than without compression, marked.

torchrun --standalone --nproc-per-node 2 examples/train_huggingface.py
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from gradwire.trainers import huggingface as compression  # the first


class Net(nn.Module):
    """Returns its loss first, as the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 7))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}


class Data(Dataset):  # type: ignore[type-arg]
    """Which of the first seven numbers is the largest?"""

    def __init__(self) -> None:
        self.x = torch.randn(512, 33, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        return {"x": self.x[at], "labels": self.x[at, :7].argmax()}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--codec", default="bf16(sum='float32')", help="see: gradwire codecs; empty: none attached")
    options.add_argument("--folder", default=str(Path(gettempdir()) / "train_huggingface"), help="of checkpoints")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--resume", action="store_true", help="from the last checkpoint in the folder")
    told = options.parse_args()

    torch.manual_seed(0)
    arguments = TrainingArguments(
        told.folder,
        max_steps=told.steps,
        save_steps=10,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(Net(), arguments, train_dataset=Data())
    compressed = compression.compress(trainer, told.codec) if told.codec else None  # the second
    trainer.train(resume_from_checkpoint=told.resume)
    with torch.no_grad():
        x = Data().x.to(trainer.args.device)
        loss = float(trainer.model(x=x, labels=x[:, :7].argmax(dim=1))["loss"])
    weights = sum(float(p.detach().double().abs().sum()) for p in trainer.model.parameters())
    if trainer.is_world_process_zero():
        handle = compressed.handle if compressed else None
        sent = f"{handle.stats()['sent_bytes_per_step']:.0f} bytes sent a step" if handle else "uncompressed"
        print(f"loss {loss:.6f}, weights {weights:.12f}, {sent}")


if __name__ == "__main__":
    main()
