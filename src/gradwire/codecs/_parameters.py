"""Parameters that mean the same in several codecs, checked in one place."""

from __future__ import annotations

import dataclasses
import math

from gradwire.core.codec import Codec
from gradwire.core.registry import Check
from gradwire.kernels.indices import CODINGS

INDEX_CODINGS = ("best", *CODINGS)
VALUE_BITS = (32, 16)


def checked(codec: Codec) -> Check:
    """Check switches, and the fields that are named below. Returns what checks the others."""
    check = Check(codec.name)
    for field in dataclasses.fields(codec):
        name, value = field.name, getattr(codec, field.name)
        if value is None and "None" in str(field.type):
            continue
        if isinstance(field.default, bool):
            check.one_of(name, value, (True, False))
        elif name == "ratio":
            check.share(name, value)
        elif name in ("block", "chunk", "rank"):
            check.integer(name, value, 1)
        elif name == "start":
            check.integer(name, value, 0)
        elif name == "value_bits":
            check.one_of(name, value, VALUE_BITS)
        elif name == "index":
            check.one_of(name, value, INDEX_CODINGS)
        elif name == "min_rate":
            check.number(name, value, 0, math.inf, "a compression rate of at least 0")
    return check
