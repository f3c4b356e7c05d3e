r"""INCEPTIONN: fixed point with an absolute error bound, in 0, 8, 16 or 32 bits an element as its size needs.

.. math::  c_i = \mathrm{round}(x_i / E), \qquad C(x)_i = E\,c_i \ \text{ or, where } |c_i| > 32767,\ x_i

A tag of two bits says how element i travels: 0: c is zero, nothing is sent; 1: |c| <= 127, one byte; 2: |c| <= 32767,
two bytes; 3: the float32 itself, finite or not. Rounding is to nearest, ties to even, and E = `bound` is a power of
two, so that |C(x)_i − x_i| <= E/2, exactly, and never more than |x_i|. Hence delta = 0 for every input, so that it may
run under error feedback; by default it has no memory.
Wire: ceil(n/4) bytes of tags, then all bytes of tag 1, all 16-bit and all 32-bit numbers: as many bits as
2 + 8 f₁ + 16 f₂ + 32 f₃ an element, for the shares f of the tags; and 8 bytes for the length.

Departs from the paper in the short forms: there they are parts of a float, made for a hardware pipeline, which keep
magnitudes from 1 on whole; here they are integers, and whole floats begin at 32768 E (32, at the default bound).

Li et al., A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks,
MICRO 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import tagged
from gradwire.kernels.bitpack import packed_bytes


@register
@dataclass(frozen=True)
class Inceptionn(Codec):
    """Round each element to a multiple of `bound`, and send it in 0, 8, 16 or 32 bits, as many as it needs.

    Args:
        bound: the step; no element is off by more than half of it. A power of two from 2**-100 to 2**100, in the units
            of the gradient. At 2**-10, elements below 0.0005 are not sent.

    Example:
        >>> gradwire.VirtualCluster(1, "inceptionn(bound=0.25)").reduce({"w": [torch.tensor([0.1, 0.3, 7.0])]})["w"]
        tensor([0.0000, 0.2500, 7.0000])
    """

    name: ClassVar[str] = "inceptionn"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Li et al., A Network-Centric Hardware/Algorithm Co-Design, MICRO 2018"
    plain_on_gpu: ClassVar[str] = "the size of an element depends on its value"
    variants: ClassVar[tuple[str, ...]] = ("inceptionn(bound=0.015625)", "inceptionn(bound=3.0517578125e-05)")
    bound: float = 2.0**-10

    def __post_init__(self) -> None:
        check = Check(self.name)
        wanted = "a power of two from 2^-100 to 2^100"
        check.number("bound", self.bound, 2.0**-100, 2.0**100, wanted)
        if math.frexp(self.bound)[0] != 0.5:
            check.fail("bound", wanted, self.bound)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, delta=0.0, fixed_size=False, elementwise=True, homogeneous=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(*tagged.encode(x, self.bound))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return tagged.decode(payload.data, self.bound, numel)

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 2) + 4 * numel + 8
