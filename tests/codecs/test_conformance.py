"""Every codec passes every check of `gradwire check`. Driven by the registry and by traits, never by names."""

from __future__ import annotations

import pytest

import gradwire
from gradwire import conformance
from gradwire.core.codec import codecs

CODECS = [
    codec
    for name in codecs.names()
    for codec in [gradwire.codec(name), *map(gradwire.codec, codecs.cls(name).variants)]
]
CASES = [(codec, case) for codec in CODECS for case in conformance.cases(codec)]


@pytest.mark.parametrize("codec, case", CASES, ids=[f"{codec.spec}-{case.label}" for codec, case in CASES])
def test_codec(codec, case):
    case.run(codec)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)
def test_the_catalogue_says_where_a_codec_comes_from(codec):
    assert len(codec.paper) > 20
