"""`gradwire check`: any codec against the suite, what fails and what to do."""

from __future__ import annotations

import json
import sys

import pytest

from gradwire import conformance
from gradwire.cli import main

CODEC = '''
import dataclasses
import torch
import gradwire
from dataclasses import dataclass
from typing import ClassVar
from gradwire.kernels import rows

@dataclass(frozen=True)
class Right(gradwire.Codec):
    """Sends float16 as bytes."""

    name: ClassVar[str] = "right"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "none"
    traits = gradwire.Traits(combine=gradwire.Combine.GATHER, memory="error_feedback", delta=0.0)

    def encode(self, x, rng):
        return gradwire.Payload(rows.join(x.clamp(-6e4, 6e4).half()))

    def decode(self, payload, numel, rng):
        return rows.take(payload.data, 0, numel, torch.float16)[0].float()

    def payload_bytes(self, numel):
        return 2 * numel

@dataclass(frozen=True)
class View(Right):
    """The README's trap of old: contiguous() of one row is no copy."""

    def encode(self, x, rng):
        scale = x.abs().amax(1, keepdim=True).clamp(min=1e-30)
        return gradwire.Payload(rows.join(scale, (x / scale * 127).round().to(torch.int8)))

    def decode(self, payload, numel, rng):
        scale = payload.data[:, :4].contiguous().view(torch.float32)
        return payload.data[:, 4:].view(torch.int8) * (scale / 127)

    def payload_bytes(self, numel):
        return numel + 4

@dataclass(frozen=True)
class Off(Right):
    """Bytes off by two."""

    def payload_bytes(self, numel):
        return 2 * numel + 2

@dataclass(frozen=True)
class Boast(Right):
    """Claims too much."""

    traits = gradwire.Traits(combine=gradwire.Combine.GATHER, memory="error_feedback", delta=1.0, sparse=True)

    def decode(self, payload, numel, rng):
        return super().decode(payload, numel, rng) * 0.5

@dataclass(frozen=True)
class Method(Right):
    """Forgot @property."""

    def traits(self):
        return Right.traits

@dataclass(frozen=True)
class Listed(Right):
    """A list is no value."""

    sizes: object = dataclasses.field(default_factory=list)

@dataclass(frozen=True)
class Steps(Right):
    """Sends float16 as bytes."""

    name: ClassVar[str] = "steps"
    variants: ClassVar[tuple[str, ...]] = ("steps(times=2)",)
    times: int = 1
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "checked_codecs.py").write_text(CODEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("checked_codecs", None)


def answer(capsys, target, code):
    assert main(["check", target]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("here")
def test_a_codec_that_keeps_its_claims_passes(capsys):
    result = answer(capsys, "checked_codecs:Right", 0)
    assert result["codecs"] == ["right"]
    assert result["passed"]
    assert all(one["passed"] and not one["problems"] for one in result["checks"])
    names = [one["check"] for one in result["checks"]]
    assert names == [c.name for c in conformance.CHECKS if c.name in names]
    assert "contracts_as_it_says" in names
    assert "unbiased_and_within_its_variance" not in names  # it does not claim that


@pytest.mark.usefixtures("here")
def test_the_trap_of_a_view_is_one_sentence(capsys):
    result = answer(capsys, "checked_codecs:View", 1)
    (only,) = result["checks"]
    assert not result["passed"]
    assert only["problems"] == [
        {
            "case": "keeps_its_contract",
            "sentence": f"RuntimeError in checked_codecs.py, line {line('contiguous().view')}, in decode: "
            "self.stride(0) must be divisible by 4 to view Byte as Float (different element sizes), but got 1005",
            "remedy": "mend that line: it must work for any number of rows and elements, also for one row; to cut a "
            "payload into typed parts, use take of gradwire.kernels.rows",
        }
    ]


def line(part):
    return next(i for i, text in enumerate(CODEC.splitlines(), 1) if part in text)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "name, sentence",
    [
        ("Off", "`payload_bytes` must return exactly what a row of 1001 elements takes, 2002 bytes, got 2004; count "
         "every part that `encode` puts into a row"),
        ("Method", "`traits` must be a property, got a method; write @property above it"),
        ("Listed", "its parameters must be plain values, numbers or texts, so that codecs can be compared and kept, "
         "got Listed(sizes=[])"),
    ],
)  # fmt: skip
def test_a_broken_contract_is_the_only_news(capsys, name, sentence):
    (only,) = answer(capsys, f"checked_codecs:{name}", 1)["checks"]
    assert [problem["sentence"] for problem in only["problems"]] == [f"right: {sentence}"]


@pytest.mark.usefixtures("here", "people")
def test_claims_that_do_not_hold_are_told_with_what_to_do(capsys):
    assert main(["check", "checked_codecs:Boast"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    for told in (
        "right: contracts_as_it_says(kind=heavy_tail) (and 3 more cases; all with --json) The error is 0.2499 of the "
        "gradient, squared, and delta = 1.0 What to do: delta is for the worst gradient: 0.0 where the error may be as "
        "large as the gradient, None where it may be larger.",
        "What was sent is not the element itself",
        "right: 2 of 27 checks failed.",
    ):
        assert told.lower() in text.lower()


@pytest.mark.usefixtures("here")
def test_variants_and_arguments(capsys):
    assert answer(capsys, "checked_codecs:Steps(times=3)", 0)["codecs"] == ["steps(times=3)", "steps(times=2)"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "target, code, message",
    [
        ("topkk", 2, "gradwire: no codec named 'topkk'; did you mean topk or topkc or gtopk?"),
        ("nowhere:X", 2, "gradwire: check: there is no module 'nowhere' in {here} or on the Python path; check its "
         "spelling, or install its package"),
        ("checked_codecs.py:X", 2, "gradwire: check: there is no module 'checked_codecs.py' in {here} or on the Python "
         "path; check its spelling, or install its package"),
        ("./checked_codecs.py:X", 2, "gradwire: check: './checked_codecs.py' is no module's name; write it as in an "
         "import statement, such as checked_codecs"),
        ("checked_codecs:Rigth", 2, "gradwire: check: module 'checked_codecs' has no 'Rigth'; did you mean Right?"),
        ("checked_codecs:torch", 1, "gradwire: <module 'torch' from"),
        ("checked_codecs:Steps(tims=3)", 2, "gradwire: steps: has no parameter `tims`; did you mean times?"),
    ],
)  # fmt: skip
def test_what_cannot_be_found(capsys, target, code, message, tmp_path):
    assert main(["check", target]) == code
    assert capsys.readouterr().err.startswith(message.format(here=tmp_path))
