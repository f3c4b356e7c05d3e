"""No memory: what a codec drops is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.core.codec import Context
from gradwire.core.window import Feedback, Window
from gradwire.memory.base import Memory, memories


@memories.register
@dataclass(frozen=True)
class NoMemory(Memory):
    """Keeps nothing."""

    name: ClassVar[str] = "none"
    has_state: ClassVar[bool] = False

    def prepare(self, source: Window, ctx: Context) -> tuple[Window, Feedback | None]:
        return source, None
