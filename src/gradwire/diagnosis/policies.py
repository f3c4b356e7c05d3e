"""A sharded model's settings that cost. Its steps are not watched: FSDP2 keeps no clocks that could be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gradwire.core.units import format_bytes
from gradwire.integrations.fsdp_parts import Dtypes


def costly_policies(elements: Mapping[Dtypes, int]) -> Iterator[str]:
    """Sentences on gradients that are reduced in more bytes than they were computed in.

    Args:
        elements: of gradients, by their dtypes.

    Example:
        >>> import torch
        >>> (told,) = costly_policies({Dtypes(torch.bfloat16, torch.float32): 1_000_000})
        >>> told[:90]
        'gradients are computed in bfloat16 and reduced in float32, 4 MB where bfloat16 has 2 MB. I'
    """
    for (computed, reduced), count in elements.items():
        if reduced.itemsize <= computed.itemsize:
            continue
        few, many = (str(dtype).removeprefix("torch.") for dtype in (computed, reduced))
        sizes = f"{format_bytes(count * reduced.itemsize)} where {few} has {format_bytes(count * computed.itemsize)}"
        yield (
            f"gradients are computed in {few} and reduced in {many}, {sizes}. If you did not ask for it (torch 2.15 "
            "and newer do it without a reduce_dtype), set "
            f"MixedPrecisionPolicy(param_dtype=torch.{few}, reduce_dtype=torch.{few}); or "
            "gradwire.attach(model, \"bf16(sum='float32')\"), which sends halves and adds them in float32"
        )
