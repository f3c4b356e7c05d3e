"""What a codec says of itself, and that it can be built again from that."""

from __future__ import annotations

import json

from gradwire.conformance.check import check, require
from gradwire.conformance.inputs import cluster, normal
from gradwire.core.codec import Codec, codecs
from gradwire.core.contract import check_codec

FAMILIES = ("baseline", "quantization", "sparsification", "hybrid", "lowrank")


@check("see help(gradwire.Codec)")
def keeps_its_contract(codec: Codec) -> None:
    """Methods return what callers are promised, for 1,001 elements and for one row, too."""
    check_codec(codec)
    for workers in (1, 3):
        for shape in ((1001,), (33, 17)):
            cluster(codec, workers).reduce({"w": [normal(*shape, seed=worker) for worker in range(workers)]})


@check("make every parameter a field of the frozen dataclass, with a plain value: a number or a text")
def spec_and_config_build_the_same_codec_again(codec: Codec) -> None:
    """Its spec and its parameters in JSON build the same codec."""
    if codec.name in codecs.names() and codecs.cls(codec.name) is type(codec):
        require(codecs.build(codec.spec) == codec, f"the spec {codec.spec!r} builds another codec")
    again = type(codec)(**json.loads(json.dumps(codec.config())))
    require(again == codec, f"{codec.spec} becomes {again.spec} when its parameters go through JSON")


@check("write family and paper as class attributes, and a docstring under the class")
def says_what_it_is(codec: Codec) -> None:
    """Family, paper and docstring are there."""
    require(codec.family in FAMILIES, f"`family` is {codec.family!r}, and should be one of {', '.join(FAMILIES)}")
    require(codec.paper, "`paper` is empty; name where the method comes from, or write 'none'")
    doc = type(codec).__dict__.get("__doc__") or ""
    require(doc.strip() and not doc.startswith(f"{type(codec).__name__}("), "the class has no docstring")


@check("write @dataclass(frozen=True) above the class, and keep what outlives a step in ctx.state")
def parameters_cannot_be_changed(codec: Codec) -> None:
    """A codec is a frozen value."""
    try:
        codec.name_of_nothing = 1  # type: ignore[attr-defined]
    except AttributeError:
        return
    require(False, "an attribute of the codec can be set")
