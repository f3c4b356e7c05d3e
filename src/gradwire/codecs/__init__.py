"""The catalogue: importing a codec's file registers it. One line per codec, nothing else."""

from gradwire.codecs.baseline.bf16 import BF16
from gradwire.codecs.baseline.fp16 import FP16
from gradwire.codecs.baseline.none import NoCompression
from gradwire.codecs.hybrid.adaptivethreshold import AdaptiveThreshold
from gradwire.codecs.hybrid.qsparse import Qsparse
from gradwire.codecs.hybrid.sketchml import SketchML
from gradwire.codecs.hybrid.strom import Strom
from gradwire.codecs.hybrid.threelc import ThreeLC
from gradwire.codecs.lowrank.atomo import Atomo
from gradwire.codecs.lowrank.gradiveq import GradiVeQ
from gradwire.codecs.lowrank.gradzip import GradZip
from gradwire.codecs.lowrank.powersgd import PowerSGD
from gradwire.codecs.quantization.blockint import BlockInt
from gradwire.codecs.quantization.efsignsgd import EFSignSGD
from gradwire.codecs.quantization.eightbit import EightBit
from gradwire.codecs.quantization.inceptionn import Inceptionn
from gradwire.codecs.quantization.lpc import LPC
from gradwire.codecs.quantization.natural import Natural
from gradwire.codecs.quantization.onebit import OneBit
from gradwire.codecs.quantization.qsgd import QSGD
from gradwire.codecs.quantization.signsgd import SignSGD
from gradwire.codecs.quantization.signum import Signum
from gradwire.codecs.quantization.terngrad import TernGrad
from gradwire.codecs.quantization.thc import THC
from gradwire.codecs.sparsification.dgc import DGC
from gradwire.codecs.sparsification.globaltopk import GlobalTopK
from gradwire.codecs.sparsification.gtopk import GTopK
from gradwire.codecs.sparsification.mstopk import MSTopK
from gradwire.codecs.sparsification.randomblock import RandomBlock
from gradwire.codecs.sparsification.randomk import RandomK
from gradwire.codecs.sparsification.sketchedsgd import SketchedSGD
from gradwire.codecs.sparsification.threshold import Threshold
from gradwire.codecs.sparsification.topk import TopK
from gradwire.codecs.sparsification.topkc import TopKC
from gradwire.codecs.sparsification.variance import Variance
from gradwire.codecs.sparsification.wangni import Wangni

__all__ = [
    "BF16",
    "DGC",
    "FP16",
    "LPC",
    "QSGD",
    "THC",
    "AdaptiveThreshold",
    "Atomo",
    "BlockInt",
    "EFSignSGD",
    "EightBit",
    "GTopK",
    "GlobalTopK",
    "GradZip",
    "GradiVeQ",
    "Inceptionn",
    "MSTopK",
    "Natural",
    "NoCompression",
    "OneBit",
    "PowerSGD",
    "Qsparse",
    "RandomBlock",
    "RandomK",
    "SignSGD",
    "Signum",
    "SketchML",
    "SketchedSGD",
    "Strom",
    "TernGrad",
    "ThreeLC",
    "Threshold",
    "TopK",
    "TopKC",
    "Variance",
    "Wangni",
]
