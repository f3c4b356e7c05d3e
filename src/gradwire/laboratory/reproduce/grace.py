"""What GRACE reports in section V: numbers, and which methods it runs with error feedback.

Xu et al., GRACE: A Compressed Communication Framework for Distributed Machine Learning, ICDCS 2021. Its testbed: 8
machines with one V100 each at 1, 10 or 25 Gbit/s; quality is the best of a training of fixed length. Its figures are
not in the text that we have. What our records say of its findings is in `reproduce.findings.grace`.
"""

from __future__ import annotations

PAPER = "Xu et al., GRACE, ICDCS 2021"
TASK = "resnet9-cifar10"
BASELINE = 91.67  # percent, ResNet-9 on CIFAR-10, table II
WORKERS = 8
RATES = ("1gbit", "10gbit", "25gbit")
WITH_EF = ("eightbit", "onebit", "natural", "efsignsgd", "topk", "threshold", "dgc", "sketchml", "powersgd")  # table I
WITHOUT_EF = ("signsgd", "signum", "qsgd", "terngrad")  # harmed by it, section V-B
HURT_ON_NCF = ("topk", "eightbit", "natural")  # section V-B
