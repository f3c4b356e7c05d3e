"""Compile the GPU kernels of the codecs that are named, for an H100 or H200, and print their names; no GPU is needed.

With ``--every`` in front, for all that may be absent from their arguments, and not only for what came last.
Products and sums must not be fused: results would not equal those of plain torch. Those of matrices may, and those
that a kernel itself asks for.
"""

from __future__ import annotations

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import gradwire
from gradwire.collectives.choose import possible
from gradwire.kernels import backend, commit, launch, select

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
EVERY = sys.argv[1:2] == ["--every"]
seen = {}


class Seen:
    """In place of a kernel: remembers what it was last launched with, for each way to compile it."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, programs):
        return self.remember

    def remember(self, *args, **options):
        name = f"{self.kernel.__module__.split('.')[-2]}.{self.kernel.__name__}"
        seen[name, tuple(absent(args)) if EVERY else (), *options.items()] = self.kernel, args, options


def absent(args, *before):
    """Where there is None among arguments and groups of them."""
    for i, value in enumerate(args):
        if isinstance(value, tuple):
            yield from absent(value, *before, i)
        elif value is None:
            yield *before, i


def compiled(kernel, args, options):
    """A kernel that is launched like this."""
    names = kernel.arg_names
    signature = {n: "constexpr" if n in options else type_of(args[i]) for i, n in enumerate(names)}
    values = {(i,): options[n] for i, n in enumerate(names) if n in options}
    values |= dict.fromkeys(absent(args))
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=TARGET, options={n: v for n, v in options.items() if n not in names})


def type_of(value):
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    if value is None:
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if abs(value) < 2**31 else "i64"


def reduce_twice(spec):
    ways = possible(gradwire.codec(spec)) or ["auto"]
    way = "all_reduce" if "all_reduce" in ways else ways[-1]
    cluster = gradwire.VirtualCluster(3, spec, strategy=way, tensors="matrices")
    for _ in range(2):
        cluster.reduce(gradients)


if __name__ == "__main__":
    start = launch.launch

    def spied(kernel, *args, **kwargs):
        start(Seen(kernel), *args, **kwargs)

    modules = (
        "above",
        "band",
        "blockwise",
        "cast",
        "chunks",
        "commit",
        "counted",
        "factors",
        "grid",
        "indices",
        "lookup",
        "means",
        "momentum",
        "powers",
        "products",
        "random",
        "scatter",
        "select",
        "sides",
        "signs",
        "support",
        "trits",
        "window",
    )
    for module in modules:
        __import__(f"gradwire.kernels.{module}.gpu")
        getattr(__import__("gradwire.kernels", fromlist=[module]), module).gpu.launch = spied
    shapes = ((64, 130), (50,), (64, 64), (30,), (70, 20), (9,), (2, 2100))
    gradients = {str(i): [torch.randn(shape)] * 3 for i, shape in enumerate(shapes)}
    torch.empty = torch.zeros  # nothing is computed: what plain torch reads of it must be in range
    with backend.interpreted():
        flag, written = torch.zeros(()), [(torch.zeros(9), torch.zeros(9))] * 2
        commit.settle([flag, flag], written, torch.tensor(0), flag, 1.0)
        for spec in sys.argv[1 + EVERY :]:
            reduce_twice(spec)
            if any(name.startswith("select.") for name, *_ in seen):  # rows that do not fit into a program
                select.gpu.SMALL, select.gpu.SAMPLE = 0, 1 << 20
                reduce_twice(spec)
                select.gpu.SAMPLED = select.gpu.SAMPLE = 1024
                reduce_twice(spec)
    for (name, *_), launched in seen.items():
        forms = compiled(*launched).asm
        wished = name.startswith("products.") or "math.fma" in forms["ttir"]
        assert wished or "fma.rn.f32" not in forms["ptx"], f"{name}: a product and a sum are one rounding"
        print(name)
