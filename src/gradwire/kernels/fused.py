"""Kernels that read and write gradients where they lie on a GPU only: one launch each way, payloads as they travel.

They are in the ``gpu.py`` of a kernel's package: `serves`, `encode_from`, `mean_to` and `reduce_and_encode`. What they
give is what the simple form of the codec gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels import backend
from gradwire.kernels.window import one_launch
from gradwire.kernels.window.places import MOST


class Rows(NamedTuple):
    """Rows as they travel, for launches."""

    data: Tensor
    stride: int
    senders: int | None = None  # neighbours that are combined; None: each row is for itself
    words: int | None = None  # None unless all parts of all rows are whole words of four bytes, aligned


def rows_of(data: Tensor, senders: int | None = None, *sizes: int) -> Rows:
    """Rows, as launches take them; their parts are of these sizes."""
    from gradwire.kernels.bitpack.gpu import words_of

    return Rows(data, data.stride(0), senders, words_of(data, *sizes) if sizes else None)


@dataclass(frozen=True)
class Fused:
    """The launches of a kernel's package for one form of payloads.

    Args:
        package: the package's name.
        form: which numbers payloads are made of; the first argument of all launches.
    """

    package: str
    form: Any

    def reads(self, window: Window, feedback: Feedback | None = None) -> bool:
        """Whether the launches can treat a window."""
        return one_launch(window, feedback, on_gpu=lambda: bool(self._launch("serves", window.buffer)(self.form)))

    def takes(self, data: Tensor, numel: int) -> bool:
        """Whether the launches can treat rows of `numel` elements as they travel."""
        if not backend.fused(data.device):
            return False
        return 0 < numel < MOST and bool(self._launch("serves", data)(self.form))

    def encode_from(
        self,
        source: Window,
        feedback: Feedback | None,
        shards: int,
        shard: int,
        noise: Stream | None,
        factor: float,
    ) -> Tensor:
        """Rows of the compensated gradients as they travel; the new error goes to ``feedback.out``.

        Each worker has `shards` rows of `shard` elements. What is decoded will be multiplied by `factor`.
        """
        encode = self._launch("encode_from", source.buffer)
        found: Tensor = encode(self.form, source, feedback, shards, shard, noise, factor)
        return found

    def decode_to(self, data: Tensor, shard: int, target: Window, factor: float) -> Flag:
        """The values of rows that are the shards of one vector, times `factor`, into a window."""
        flag: Flag = self._launch("mean_to", target.buffer)(self.form, data, None, shard, target, factor)
        return flag

    def combine_to(self, data: Tensor, target: Window, factor: float) -> Flag:
        """The mean of the rows, first to last, times `factor`, into a window."""
        mean_to = self._launch("mean_to", target.buffer)
        flag: Flag = mean_to(self.form, data, data.shape[0], target.numel, target, factor)
        return flag

    def reduce_and_encode(
        self, data: Tensor, numel: int, feedback: Feedback | None, noise: Stream | None, groups: int, factor: float
    ) -> Tensor:
        """The mean of the rows of each group, times `factor`, plus what `feedback` keeps; and that, encoded."""
        reduce = self._launch("reduce_and_encode", data)
        found: Tensor = reduce(self.form, data, numel, feedback, noise, groups, factor)
        return found

    def _launch(self, name: str, tensor: Tensor) -> Callable[..., Any]:
        return backend.fast(self.package, name, tensor)
