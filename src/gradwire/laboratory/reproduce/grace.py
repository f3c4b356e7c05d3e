"""What GRACE reports in section V: numbers, and which methods it runs with error feedback.

Xu et al., GRACE: A Compressed Communication Framework for Distributed Machine Learning, ICDCS 2021. Its testbed: 8
machines with one V100 each at 1, 10 or 25 Gbit/s; quality is the best of a training of fixed length. Its figures are
not in the text that we have. What our records say of its findings is in `reproduce.claims.grace`.
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER = "Xu et al., GRACE, ICDCS 2021"
TASK = "resnet9-cifar10"
BASELINE = 91.67  # percent, ResNet-9 on CIFAR-10, table II
WORKERS = 8
RATES = ("1gbit", "10gbit", "25gbit")
WITH_EF = ("eightbit", "onebit", "natural", "efsignsgd", "topk", "threshold", "dgc", "sketchml", "powersgd")  # table I
WITHOUT_EF = ("signsgd", "signum", "qsgd", "terngrad")  # harmed by it, section V-B
OTHERS = ("inceptionn", "randomk", "adaptivethreshold")  # table I has a cross or a tilde
METHODS = (*WITH_EF, *WITHOUT_EF, *OTHERS)  # the 16 that it runs
PLAIN_SGD = ("powersgd", "randomk", "dgc", "signsgd", "signum")  # on images, where all others have momentum, V-A
SCALED = ("qsgd",)  # by our error feedback, since it would diverge otherwise: no evidence about it
HURT_ON_NCF = ("topk", "eightbit", "natural")  # section V-B
NCF_LOSS = 0.10  # of the baseline's quality, at most, section V-B


@dataclass(frozen=True)
class Benchmark:
    """A row of table II, and the task of ours that stands for it; None: there is none."""

    name: str
    task: str | None
    quality: float  # percent, or a perplexity
    epochs: int


TABLE_II = (
    Benchmark("ResNet-20 on CIFAR-10", "resnet20-cifar10", 90.86, 328),
    Benchmark("DenseNet40-K12 on CIFAR-10", "densenet40-cifar10", 92.07, 328),
    Benchmark("ResNet-9 on CIFAR-10", TASK, BASELINE, 24),
    Benchmark("VGG16 on CIFAR-10", "vgg16-cifar10", 86.32, 328),
    Benchmark("ResNet-50 on ImageNet", None, 75.37, 90),
    Benchmark("VGG19 on ImageNet", None, 68.90, 90),
    Benchmark("NCF on Movielens-20M", "ncf-ml20m", 95.98, 30),
    Benchmark("LSTM on PTB", "lstm-ptb", 100.168, 25),
    Benchmark("U-Net on DAGM2007", "unet-dagm", 96.4, 625),  # of 4 steps; the table has 2,500, which are iterations
)
