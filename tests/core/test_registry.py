"""Names, specs, and the sentences they fail with."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import ClassVar

import pytest

import gradwire
from gradwire.core.codec import Combine, Traits, codecs
from gradwire.core.registry import Registry


@pytest.mark.parametrize(
    "spec, message",
    [
        ("powersg", "no codec named 'powersg'; did you mean powersgd?"),
        ("topk(ration=0.1)", "topk: has no parameter `ration`; did you mean ratio?"),
        ("none(x=1)", "none: has no parameter `x`; it takes none"),
        ("topk(0.1, ratio=0.2)", "topk: `ratio` is given twice in 'topk(0.1, ratio=0.2)'"),
        ("fp16(1, 2, 3)", "fp16: takes at most 2 arguments, got 3 in 'fp16(1, 2, 3)'"),
        ("topk(ratio=5)", "topk: `ratio` must be the share kept, in (0, 1], got 5"),
        ("topk(ratio=0)", "topk: `ratio` must be the share kept, in (0, 1], got 0"),
        ("topk(ratio='all')", "topk: `ratio` must be the share kept, in (0, 1], got 'all'"),
        ("topk(value_bits=8)", "topk: `value_bits` must be 32 or 16, got 8"),
        ("randomk(unbiased=3)", "randomk: `unbiased` must be True or False, got 3"),
        ("qsgd(levels=0)", "qsgd: `levels` must be a whole number from 1 to 32767, got 0"),
        ("qsgd(levels=2.5)", "qsgd: `levels` must be a whole number from 1 to 32767, got 2.5"),
        ("qsgd(norm='l1')", "qsgd: `norm` must be 'max' or 'l2', got 'l1'"),
        ("powersgd(rank=0)", "powersgd: `rank` must be a whole number of at least 1, got 0"),
        ("efsignsgd(block=True)", "efsignsgd: `block` must be a whole number of at least 1, got True"),
        ("topkc(ratio=0.1, bits=2)", "topkc: give `ratio` or `bits`, not both; got ratio=0.1, bits=2"),
        (
            "topkc(bits=0.1, chunk=64)",
            "topkc: `bits` must be more than 16/chunk = 0.25, which the energies take, up to 16.25, got 0.1",
        ),
    ]
    + [
        (
            bad,
            f"codec spec {bad!r} cannot be read; write a name, or a name with literal arguments "
            'such as "topk(ratio=0.01)"',
        )
        for bad in ["", "topk(", "topk(ratio=x)", "topk[1]", "a.b(1)", "topk(**{})", "import os", "f(g())"]
    ],
)
def test_bad_specs_get_a_whole_sentence(spec, message):
    with pytest.raises(gradwire.GradwireError) as caught:
        gradwire.codec(spec)
    assert str(caught.value) == message


def test_unknown_names_without_a_near_match_list_what_there_is():
    with pytest.raises(gradwire.UnknownName) as caught:
        gradwire.codec("zzz")
    assert str(caught.value) == (
        f"no codec named 'zzz'; known: {', '.join(gradwire.codec_names())}. A codec of yours: import its module first, "
        "or name it with --import"
    )


def test_specs_in_all_their_forms():
    topk = type(gradwire.codec("topk"))
    assert gradwire.codec(" topk ") == topk()
    assert gradwire.codec("topk(0.5)") == gradwire.codec("topk(ratio=.5)") == topk(ratio=0.5)
    assert gradwire.codec("topk()").spec == "topk"
    assert topk(ratio=0.5).spec == "topk(ratio=0.5)"
    assert gradwire.codec("qsgd(levels=1, norm='l2')").spec == "qsgd(levels=1, norm='l2')"


def test_other_kinds_use_the_same_words():
    with pytest.raises(gradwire.UnknownName, match=r"^no memory named 'eror_feedback'; did you mean error_feedback\?$"):
        gradwire.VirtualCluster(2, "topk", memory="eror_feedback")
    with pytest.raises(gradwire.UnknownName, match=r"^no strategy named 'allreduce'; did you mean all_reduce\?$"):
        gradwire.VirtualCluster(2, "topk", strategy="allreduce")


def test_a_name_is_taken_once():
    registry = Registry("thing", "gradwire.codecs")
    registry.register(type("First", (), {"name": "x"}))
    with pytest.raises(gradwire.ConfigError, match=r"^thing name 'x' is taken by .*First; choose another$"):
        registry.register(type("Second", (), {"name": "x"}))
    with pytest.raises(gradwire.ConfigError, match=r"needs a class attribute `name`, got ''$"):
        registry.register(type("Nameless", (), {}))


@dataclass(frozen=True)
class Borrowed(type(gradwire.codec("fp16"))):
    name: ClassVar[str] = "borrowed"

    @property
    def traits(self):
        return Traits(combine=Combine.SUM, delta=0.0)


def test_third_parties_register_through_entry_points(monkeypatch):
    point = importlib.metadata.EntryPoint("borrowed", f"{__name__}:Borrowed", "gradwire.codecs")
    monkeypatch.setattr("gradwire.core.registry.entry_points", lambda group: [point] * (group == "gradwire.codecs"))
    monkeypatch.setattr(codecs, "_classes", dict(codecs._classes))
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: Borrowed)
    assert gradwire.codec("borrowed(scale=2)").spec == "borrowed(scale=2)"
    assert "borrowed" in gradwire.codec_names()
