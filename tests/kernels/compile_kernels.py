"""Compile every GPU kernel that a few steps launch, for an H100 or H200, and print its name; no GPU is needed.

Products and sums must not be fused: results would not equal those of plain torch.
"""

from __future__ import annotations

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import gradwire
from gradwire.kernels import backend, launch

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
CODECS = ("blockint", "blockint(bits=6, rounding='stochastic')", "terngrad", "efsignsgd", "signsgd")
done = set()


class Compiled:
    """In place of a kernel: compiles it for what it is launched with."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, programs):
        return self.compile

    def compile(self, *args, num_warps, enable_fp_fusion, **constants):
        names = self.kernel.arg_names
        signature = {name: type_of(value) for name, value in zip(names, args, strict=False)}
        signature |= dict.fromkeys(constants, "constexpr")
        name = f"{self.kernel.__module__.split('.')[-2]}.{self.kernel.__name__}"
        key = name, *signature.items(), *constants.items()
        if key in done:
            return
        done.add(key)
        values = {(names.index(n),): value for n, value in constants.items()}
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=values)
        options = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion}
        found = triton.compile(source, target=TARGET, options=options)
        assert "fma.rn.f32" not in found.asm["ptx"], f"{name}: a product and a sum are one rounding"
        print(name)


def type_of(value):
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


if __name__ == "__main__":
    start = launch.launch

    def compiling(kernel, *args, **kwargs):
        start(Compiled(kernel), *args, **kwargs)

    for module in ("grid", "signs", "random", "trits"):
        __import__(f"gradwire.kernels.{module}.gpu")
        getattr(__import__("gradwire.kernels", fromlist=[module]), module).gpu.launch = compiling
    shapes = ((64, 130), (50,), (64, 64))
    gradients = {str(i): [torch.randn(shape)] * 3 for i, shape in enumerate(shapes)}
    with backend.interpreted():
        for spec in CODECS:
            cluster = gradwire.VirtualCluster(3, spec, strategy="scatter_reduce_gather", tensors="matrices")
            for _ in range(2):
                cluster.reduce(gradients)
