"""Compressors as somebody would write them against GRACE's interface, knowing nothing of this library."""

from __future__ import annotations

import torch


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
