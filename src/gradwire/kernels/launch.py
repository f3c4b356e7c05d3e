"""How a Triton kernel is started."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from gradwire.kernels.recording import recording

WARPS = 4


def launch(kernel: Any, programs: int, device: torch.device, *args: Any, warps: int = WARPS, **constants: Any) -> None:
    """Start `programs` programs of a kernel.

    A product and a sum stay two roundings, as in plain torch: results equal the reference bit for bit.

    Args:
        kernel: what ``triton.jit`` made.
        programs: how many; none is fine.
        device: where they run.
        args: the kernel's arguments, in order.
        warps: of 32 threads each, for one program.
        constants: what the kernel is compiled for.
    """
    if programs:
        if (record := recording()) is not None:
            record.hold(args)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[(programs,)](*args, **constants, num_warps=warps, enable_fp_fusion=False)
