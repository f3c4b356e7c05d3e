"""20 steps of every codec under every strategy give the numbers they gave before: see digests.py."""

from __future__ import annotations

import json

import pytest

import gradwire
from digests import FILE, cases, digest, machine
from gradwire.core.codec import codecs

# Codecs in whose results a machine's own order of sums, or its mathematical functions, may show in the last bits.
ROUNDED = {"atomo", "gradiveq", "gradzip", "powersgd", "variance"}
# The machine that wrote the file, and others of its kind. Elsewhere vectors may be shorter and sums of squares round
# otherwise, and a codec that chooses among directions of nearly equal weight chooses others.
HOME = machine() == "4d5138f3602dcefd"
SQUARES = ("terngrad", "norm='l2'")
CHOOSING = ("gradiveq",)
KNOWN = json.loads(FILE.read_text(encoding="utf-8"))
FIRST = {key.partition(" | ")[0]: key for key in reversed(KNOWN)}  # setting -> the first of its cases
MET = {FIRST[name] for name in codecs.names()}  # by `make test`: each codec as it is by default


def test_every_case_has_a_digest():
    assert set(KNOWN) == set(cases())


def test_every_codec_is_met_by_default():
    assert {cases()[key][:2] for key in MET} == {(name, "default") for name in codecs.names()}


@pytest.mark.parametrize("key", [pytest.param(key, marks=[] if key in MET else pytest.mark.sweep) for key in KNOWN])
def test_numbers_are_the_same_as_before(key):
    spec, memory, strategy = cases()[key]
    wanted, found = KNOWN[key], digest(spec, memory, strategy)
    assert found["sent_bytes"] == wanted["sent_bytes"]
    if gradwire.codec(spec).name not in ROUNDED and (HOME or not any(word in spec for word in SQUARES)):
        assert found["bits"] == wanted["bits"]
    elif HOME or not any(word in spec for word in CHOOSING):
        slack = (1e-4 if HOME else 1e-3) * max(map(abs, wanted["projections"]))
        assert found["projections"] == pytest.approx(wanted["projections"], rel=0, abs=slack)
