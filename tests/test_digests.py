"""20 steps of every codec under every strategy give the numbers they gave before: see digests.py."""

from __future__ import annotations

import json

import pytest
from digests import FILE, cases, digest

import gradwire

# Codecs in whose results a machine's own order of sums, or its mathematical functions, may show in the last bits.
ROUNDED = {"atomo", "gradiveq", "gradzip", "powersgd", "variance"}
KNOWN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_case_has_a_digest():
    assert set(KNOWN) == set(cases())


@pytest.mark.parametrize("key", list(KNOWN))
def test_numbers_are_the_same_as_before(key):
    spec, memory, strategy = cases()[key]
    wanted, found = KNOWN[key], digest(spec, memory, strategy)
    assert found["sent_bytes"] == wanted["sent_bytes"]
    if gradwire.codec(spec).name in ROUNDED:
        assert found["projections"] == pytest.approx(wanted["projections"], rel=1e-4, abs=1e-4)
    else:
        assert found["bits"] == wanted["bits"]
