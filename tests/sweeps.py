"""Which cases are sweeps, that is: repeat over more settings what another case checks with a codec's defaults.

`make test` leaves them to `make test-all`. Tests mark their own with ``pytest.mark.sweep``. The rule here is for suites
that walk the registry: in them, variants of a codec are sweeps, and its defaults are not.
"""

from __future__ import annotations

from collections.abc import Mapping

import gradwire
from gradwire.core.codec import Codec

SUITES = ("tests/codecs/test_conformance.py",)


def is_sweep(file: str, parameters: Mapping[str, object]) -> bool:
    """Whether the case of that file, with these parameters, is one."""
    codec = parameters.get("codec")
    return file in SUITES and isinstance(codec, Codec) and codec != gradwire.codec(codec.name)
