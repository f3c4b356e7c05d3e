"""Fields word by word. The number of fields in a word is part of the compiled type, so that loops over them unroll."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split


def pack(codes: Tensor, width: int) -> Tensor:
    (rows, numel), word = codes.shape, (0,) * (32 // width)
    out = torch.empty((rows, -(-numel // len(word))), dtype=torch.int32)
    source = codes.byte() if codes.dtype == torch.bool else codes
    array, words = source.detach().contiguous().numpy(), out.numpy()
    split(lambda a, b: _pack(array, words, word, width, a, b), numel, len(word))
    return out


def unpack(words: Tensor, width: int, numel: int) -> Tensor:
    out, word = torch.empty((words.shape[0], numel), dtype=torch.int64), (0,) * (32 // width)
    if len(word) * words.shape[1] < numel:
        raise ValueError(f"{numel} fields of {width} bits do not fit in {words.shape[1]} words")
    array, codes = words.detach().contiguous().numpy().view(np.uint32), out.numpy()
    split(lambda a, b: _unpack(array, codes, word, width, a, b), numel, len(word))
    return out


@jit
def _pack(codes: np.ndarray, out: np.ndarray, word: tuple[int, ...], width: int, start: int, stop: int) -> None:
    """Codes from `start`, where a word begins, to `stop` of all rows; `word` has as many entries as a word has."""
    first, whole, left = start // len(word), stop // len(word), stop % len(word)
    for r in range(codes.shape[0]):
        source, target = codes[r, start:stop], out[r, first:]
        for j in range(whole - first):
            bits = np.uint32(0)
            for i in range(len(word)):
                bits |= np.uint32(source[j * len(word) + i]) << np.uint32(i * width)
            target[j] = bits
        if left:
            bits = np.uint32(0)
            for i in range(left):
                bits |= np.uint32(codes[r, stop - left + i]) << np.uint32(i * width)
            out[r, whole] = bits


@jit
def _unpack(words: np.ndarray, out: np.ndarray, word: tuple[int, ...], width: int, start: int, stop: int) -> None:
    first, whole, left = start // len(word), stop // len(word), stop % len(word)
    mask = np.uint32((1 << width) - 1)
    for r in range(out.shape[0]):
        source, target = words[r, first:], out[r, start:stop]
        for j in range(whole - first):
            for i in range(len(word)):
                target[j * len(word) + i] = (source[j] >> np.uint32(i * width)) & mask
        for i in range(left):
            out[r, stop - left + i] = (words[r, whole] >> np.uint32(i * width)) & mask
