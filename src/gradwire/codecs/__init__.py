"""The catalogue: importing a codec's file registers it. One line per codec, nothing else."""

from gradwire.codecs.baseline.bf16 import BF16
from gradwire.codecs.baseline.fp16 import FP16
from gradwire.codecs.baseline.none import NoCompression
from gradwire.codecs.lowrank.powersgd import PowerSGD
from gradwire.codecs.quantization.efsignsgd import EFSignSGD
from gradwire.codecs.quantization.qsgd import QSGD
from gradwire.codecs.quantization.signsgd import SignSGD
from gradwire.codecs.sparsification.randomk import RandomK
from gradwire.codecs.sparsification.topk import TopK
from gradwire.codecs.sparsification.topkc import TopKC

__all__ = [
    "BF16",
    "FP16",
    "QSGD",
    "EFSignSGD",
    "NoCompression",
    "PowerSGD",
    "RandomK",
    "SignSGD",
    "TopK",
    "TopKC",
]
