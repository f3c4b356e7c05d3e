"""One bit an element: signs, two-valued decoding, and votes. Bits are packed as in `bitpack`."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import fast, run
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.rows import check_bytes
from gradwire.kernels.signs import reference
from gradwire.kernels.window import one_pass as window_in_one_pass


def encode(x: Tensor) -> Tensor:
    """Bit 1 where x >= 0: (rows, numel) -> (rows, ceil(numel/8)) uint8."""
    return run(reference.encode, x)


def encode_or_toss(x: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Bit 1 where x > 0, a coin of the stream where x is zero; and, (rows, 1), which rows are not finite.

    Element j of row i has coin i·numel + j.
    """
    return run(reference.encode_or_toss, x, stream)


def encode_or_toss_from(
    source: Window, running: Feedback | None, shards: int, shard: int, stream: Stream, owner: str
) -> tuple[Tensor, Tensor]:
    """`encode_or_toss` of gradients where they lie, for `one_pass` windows: `shards` rows for each worker.

    On a GPU, `running` may add to them, and keep the sum.
    """
    found: tuple[Tensor, Tensor] = fast(__name__, "encode_or_toss_from", source.buffer)(
        source, running, shards, shard, stream, owner
    )
    return found


def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    """Coins for a row of each key, packed: (keys, ceil(numel/8)) uint8."""
    return run(reference.tosses, stream, numel, device)


def encode_scaled(x: Tensor, block: int, keep_own: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """The mean magnitude of each block, (rows, blocks), the bits of `encode`, and, if wanted, what they decode to.

    The decoded values are (rows, numel): plus the block's mean magnitude for bit 1, minus it for bit 0.
    """
    return run(reference.encode_scaled, x, block, keep_own)


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    """Bit 1 becomes its block's `plus`, bit 0 its `minus`, both (rows, blocks): (rows, numel) float32."""
    check_bytes(data, packed_bytes(numel, 1))
    return run(reference.decode, data, minus, plus, block, numel)


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int, groups: int = 1) -> Tensor:
    """The decoded values summed over the rows of each of `groups` equal groups: (groups, numel) float32."""
    return run(reference.decode_sum, data, minus, plus, block, numel, groups)


def split(data: Tensor, block: int, numel: int) -> tuple[Tensor, Tensor]:
    """Scales and packed bits of rows of scaled signs as they travel: float32 scales, then the bits."""
    return reference.split(data, block, numel)


def reduce_and_encode(
    data: Tensor, block: int, numel: int, feedback: Feedback | None = None, groups: int = 1, owner: str = ""
) -> Tensor:
    """The mean of scaled signs, plus what `feedback` keeps; and that by `encode_scaled`. Rows are as they travel.

    There is one for each group. What the encoding loses goes to ``feedback.out``.
    """
    return run(reference.reduce_and_encode, data, block, numel, feedback, groups, owner)


def in_one_pass(window: Window, feedback: Feedback | None = None, block: int = 8) -> bool:
    """Whether the functions below can treat a window, and blocks of scaled signs."""
    return window_in_one_pass(window, feedback, on_gpu=lambda: import_module(f"{__name__}.gpu").serves(block))


def encode_scaled_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, block: int, factor: float, owner: str
) -> Tensor:
    """`encode_scaled` of the compensated gradients in one pass, for `one_pass` windows: rows as they travel.

    Each worker has `shards` rows of `shard` elements. The new error goes to ``feedback.out``.
    """
    encode = fast(__name__, "encode_scaled_from", source.buffer)
    found: Tensor = encode(source, feedback, shards, shard, block, factor, owner)
    return found


def decode_scaled_to(data: Tensor, block: int, shard: int, target: Window, factor: float) -> Flag:
    """Scaled signs, rows that are the shards of one vector, times `factor`, into a `one_pass` window."""
    flag: Flag = fast(__name__, "decode_scaled_to", target.buffer)(data, block, shard, target, factor)
    return flag


def combine_scaled_to(data: Tensor, block: int, target: Window, factor: float) -> Flag:
    """The mean of rows of scaled signs, times `factor`, into a `one_pass` window."""
    flag: Flag = fast(__name__, "combine_scaled_to", target.buffer)(data, block, target, factor)
    return flag


def decode_to(data: Tensor, minus: Tensor, plus: Tensor, block: int, shard: int, target: Window, factor: float) -> None:
    """`decode` of rows that are the shards of one vector, times `factor`, where they belong in a `one_pass` window."""
    fast(__name__, "decode_to", target.buffer)(data, minus, plus, block, shard, target, factor)


def combine_to(data: Tensor, minus: Tensor, plus: Tensor, block: int, target: Window, factor: float) -> None:
    """The mean of the decoded rows, times `factor`, where it belongs in a window that the CPU reads in one pass."""
    fast(__name__, "combine_to", target.buffer)(data, minus, plus, block, target, factor)


def vote(data: Tensor, ties: Tensor, groups: int = 1) -> Tensor:
    """The majority of the rows of each group, bit by bit; equal numbers take the bit of `ties`: -> (groups, bytes)."""
    return run(reference.vote, data, ties, groups)
