"""Principal components of the slices of training steps: gathered by rank 0, found, handed to all workers, and kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.lowrank._matrices import unit
from gradwire.core.codec import Context
from gradwire.core.exchange import Program, Sum

ROOT = "root"  # kinds of state: R with RᵀR = the sum of g gᵀ over the training slices so far,
BASIS = "basis"  # U,
CENTRE = "centre"  # and μ


def grown(name: str, slices: Tensor, centred: bool, first: bool, ctx: Context) -> Tensor:
    """R with these slices under it; with a column of ones before it if the mean is wanted."""
    root = torch.cat([slices.new_ones((len(slices), 1)), slices], 1) if centred else slices
    kept = None if first else ctx.state.get(ROOT, name)
    if kept is not None and kept.shape[1] == root.shape[1]:
        scaled = torch.cat([kept[:, :centred], kept[:, centred:] * ctx.rescale], 1)
        root = torch.cat([scaled, root])
    return _triangular(root)


def share_bases(
    names: Sequence[str], roots: Sequence[Tensor], length: int, kept: int, centred: bool, x: Tensor, ctx: Context
) -> Program[None]:
    """The worker that has the roots finds U, and μ if it is wanted, of each tensor; all workers keep them."""
    given = x.new_zeros((len(x), len(names), length, kept + centred))
    for i, root in enumerate(roots):
        given[0, i] = _principal(root, kept, centred)
    taken = yield Sum(given)
    for name, part in zip(names, taken[0], strict=True):
        ctx.state.forget(ROOT, name)
        ctx.state.put(BASIS, name, part[:, :kept])
        if centred:
            ctx.state.put(CENTRE, name, part[:, kept])


def known_basis(
    name: str, length: int, kept: int, centred: bool, ctx: Context, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """U, and μ in today's units if it is wanted, as the last training left them."""
    basis, centre = ctx.state.get(BASIS, name), ctx.state.get(CENTRE, name)
    first = torch.eye(length, kept, device=device)
    if basis is None or basis.shape != first.shape:
        basis = first
    basis = torch.where(basis.any(), basis, first)  # where the host never waits, a bad step leaves zeros behind
    if not centred or centre is None or centre.shape != (length,):
        return basis, None
    centre = centre * ctx.rescale
    ctx.state.put(CENTRE, name, centre)
    return basis, centre


def _triangular(root: Tensor) -> Tensor:
    """R with the same RᵀR, and no more rows than columns."""
    return root if root.shape[0] <= root.shape[1] else torch.linalg.qr(root, mode="r").R


def _principal(root: Tensor, kept: int, centred: bool) -> Tensor:
    """The `kept` leading components of RᵀR, (K, kept), and the mean slice as one more column if it is wanted."""
    centre = []
    if centred:  # the first row of the factor of [1 | g] is √N [1 | μ], the rest is that of the g − μ
        root = torch.linalg.qr(root, mode="r").R
        centre = [(root[0, 1:] / root[0, 0])[:, None]]
        root = F.pad(root[1:, 1:], (0, 0, 0, 1))  # one slice alone would leave no row
    exact = unit(root).nan_to_num(0.0).double()  # a step that is not finite leaves no basis behind
    basis = torch.linalg.eigh(exact.mT @ exact).eigenvectors.flip(1)[:, :kept]
    return torch.cat([basis.to(root.dtype), *centre], 1)
