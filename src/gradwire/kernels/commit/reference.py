"""Taking back in plain torch: three passes over what was written."""

from __future__ import annotations

from torch import Tensor

from gradwire.core.state import put_back


def take_back(new: Tensor, old: Tensor | None, finite: Tensor) -> None:
    put_back(new, old, finite)
