"""Compressors as somebody would write them against GRACE's interface, knowing nothing of this library."""

from __future__ import annotations

import torch
from torch import distributed as dist


class Largest:
    """Top-k: values and 64-bit indices, unpacked."""

    def __init__(self, ratio):
        self.ratio = ratio

    def compress(self, tensor, name):
        flat = tensor.flatten()
        _, chosen = flat.abs().topk(max(1, int(flat.numel() * self.ratio)))
        return [flat[chosen], chosen], tensor.shape

    def decompress(self, tensors, ctx):
        values, chosen = tensors
        return torch.zeros(ctx.numel()).scatter_(0, chosen, values).view(ctx)


class Bounded:
    """Whatever exceeds a bound: sizes differ between workers, and may be zero."""

    tensors_size_are_same = False

    def __init__(self, bound):
        self.bound = bound

    def compress(self, tensor, name):
        flat = tensor.flatten()
        (chosen,) = torch.where(flat.abs() > self.bound)
        return (flat[chosen], chosen), tensor.shape

    def decompress(self, tensors, ctx):
        values, chosen = tensors
        return torch.zeros(ctx.numel()).scatter_(0, chosen, values).view(ctx)


class Vote:
    """Signs as bytes; the majority decides, nothing is averaged."""

    average = False

    def compress(self, tensor, name):
        return [(tensor >= 0).to(torch.uint8)], None

    def decompress(self, tensors, ctx):
        return tensors[0].float() * 2 - 1

    def aggregate(self, tensors):
        return torch.where(sum(tensors) >= 0, 1.0, -1.0)


class Noisy:
    """Draws from the global generator, and spoils its input."""

    def compress(self, tensor, name):
        noise = torch.rand(tensor.shape)
        tensor.mul_(0)
        return [noise], None

    def decompress(self, tensors, ctx):
        return tensors[0]


class Residual:
    """Error feedback."""

    def __init__(self):
        self.left = {}

    def compensate(self, tensor, name):
        return tensor + self.left[name] if name in self.left else tensor

    def update(self, tensor, name, compressor, tensors, ctx):
        self.left[name] = tensor - compressor.decompress(tensors, ctx)


class Momentum(Vote):
    """Signs of a momentum that the compressor keeps itself."""

    def __init__(self):
        self.kept = {}

    def compress(self, tensor, name):
        assert tensor.isfinite().all(), "as most code, this does not expect anything else"
        self.kept[name] = 0.9 * self.kept.get(name, 0) + tensor
        return super().compress(self.kept[name], name)


class LowRank:
    """PowerSGD of rank 1 or more: factors are summed inside `compress`, and nothing is left to send."""

    def __init__(self, workers, rank=1, op=dist.ReduceOp.SUM):
        self.workers, self.rank, self.op = workers, rank, op

    def compress(self, tensor, name):
        if tensor.dim() < 2:
            return [tensor], None
        matrix = tensor.view(len(tensor), -1)
        q = torch.randn(matrix.shape[1], self.rank)
        p = matrix @ q
        dist.all_reduce(p, op=self.op)
        p, _ = torch.linalg.qr(p)
        q = matrix.T @ p
        dist.all_reduce(q)
        return [], (p, q / self.workers, tensor.shape)

    def decompress(self, tensors, ctx):
        if ctx is None:
            return tensors[0]
        p, q, shape = ctx
        return (p @ q.T).view(shape)


class Uneven(Largest):
    """Declares equal sizes, and sends another number of values from worker to worker."""

    def compress(self, tensor, name):
        values, chosen = torch.sort(tensor.flatten(), descending=True)
        count = 1 + int((tensor > 0).sum())
        return [values[:count], chosen[:count]], tensor.shape
