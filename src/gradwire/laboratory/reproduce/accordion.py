"""What the chapter on Accordion publishes: tables 3.1 and 3.2, and what is said around them.

Agarwal, dissertation, chapter 3 (Accordion, MLSys 2021, arXiv:2010.16248). 4 workers with a batch of 128 each, 300
epochs of 98 steps, learning rate divided by ten at 150 and 250, PowerSGD. Floats are those that a worker sends, in
millions, over the whole training.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "Agarwal, dissertation, chapter 3"
STEPS, EPOCHS = 98, 300
EXACT = 0.0005  # of a published volume, for it to be the same
EQUAL = 0.5  # points that count as the same accuracy
FEWER = 0.8  # of low compression's floats that Accordion may send, to be called a saving
SCHEDULE = 59.0  # epochs at low compression that table 3.2's volume of ResNet-18 stands for
NEAR = 0.1  # epochs
BATCHES = (94.49, 93.21, 94.34)  # percent, ResNet-18 on CIFAR-10: 512, 4096, Accordion; the authors' logs, last epoch
LARGEST, COMMON = 0.1, 0.9  # of coordinates; which share of them two gradients have in common, figure 3.3a
SAME = 0.5  # of the windows that either measure calls critical: those that both must, for regimes to be the same
LARGE_BATCH_LOSS = 1.6  # points at a batch of 16,384, section 3.3


@dataclass(frozen=True)
class Line:
    """Three rows of a table: low and high compression, and Accordion between them."""

    network: str
    model: str  # ours
    task: str
    table: str
    low: str
    high: str
    accuracy: tuple[float, float, float]  # percent: low, high, Accordion
    floats: tuple[float, float, float]  # millions

    @property
    def data(self) -> str:
        return "CIFAR-100" if self.task.endswith("cifar100") else "CIFAR-10"

    @property
    def saved(self) -> float:
        """How many times less Accordion sends than low compression."""
        return self.floats[0] / self.floats[2]


LINES = (
    Line(
        "ResNet-18",
        "resnet18-cifar10",
        "resnet18-cifar10",
        "table 3.1",
        "powersgd(rank=2)",
        "powersgd(rank=1)",
        (94.5, 94.1, 94.5),
        (2418.4, 1350.4, 1571.8),
    ),
    Line(
        "VGG-19bn",
        "vgg19bn-cifar10",
        "vgg19bn-cifar10",
        "table 3.1, figure 3.4",
        "powersgd(rank=4)",
        "powersgd(rank=1)",
        (93.4, 68.6, 92.9),
        (6752.0, 2074.9, 2945.1),
    ),
    Line(
        "ResNet-18",
        "resnet18-cifar100",
        "resnet18-cifar100",
        "table 3.2",
        "powersgd(rank=2)",
        "powersgd(rank=1)",
        (71.7, 70.0, 71.8),
        (2426.3, 1355.7, 1566.3),
    ),
)


@dataclass(frozen=True)
class Row:
    """Three rows of a table whose network nobody trained here."""

    network: str
    data: str
    table: str
    accuracy: tuple[float, float, float]  # percent: low, high, Accordion


UNTRAINED = (
    Row("SENet", "CIFAR-10", "table 3.1", (94.5, 94.2, 94.5)),
    Row("DenseNet", "CIFAR-100", "table 3.2", (72.0, 71.6, 72.5)),
    Row("SENet", "CIFAR-100", "table 3.2", (72.5, 71.5, 72.4)),
)
TEXT_3_2 = (
    72.4,
    71.3,
    72.3,
)  # percent, ResNet-18 on CIFAR-100 as the text beside table 3.2 has it: low, high, Accordion
