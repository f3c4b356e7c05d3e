"""A ring all-reduce of packed codes that clamps at each hop, so that sums stay in as many bits as the codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.core.codec import Context
from gradwire.core.exchange import Gather, Payload, Program, Route
from gradwire.kernels.bitpack import pack, unpack


def saturated(codes: Tensor, bits: int, top: int, coded: int, ctx: Context) -> Program[Tensor]:
    """Sums clamped to ±`top` at every hop, (1, coded). Shard r starts at worker r and ends, complete, at r − 1."""

    def signed(data: Tensor, numel: int) -> Tensor:
        return unpack(data, bits, numel).to(torch.int32).sub_(top)

    n, shard = ctx.workers, -(-coded // ctx.workers)
    parts = F.pad(signed(codes, coded), (0, n * shard - coded)).view(-1, n, shard)
    to, source = (tuple((r + d) % n for r in ctx.ranks) for d in (1, -1))
    part = torch.stack([parts[i, r] for i, r in enumerate(ctx.ranks)])
    for hop in range(1, n):
        there = yield Route(Payload(pack(part + top, bits)), to, source)
        added = torch.stack([parts[i, (r - hop) % n] for i, r in enumerate(ctx.ranks)])
        part = (signed(there.data, shard) + added).clamp_(-top, top)
    # not a relay: the codes that a worker added last go out with it for the first time
    done = yield Gather(Payload(pack(part + top, bits)))
    return signed(done.data, shard).roll(1, 0).view(1, -1)[:, :coded]
