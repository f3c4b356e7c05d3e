"""`gradwire codecs`: the whole registry, in the promised shape."""

from __future__ import annotations

import doctest
import importlib
import json

import pytest

from gradwire.cli import main
from gradwire.core.codec import codecs

KEYS = {
    "name", "spec", "family", "parameters", "traits", "strategies", "bits_per_element", "memory", "summary", "paper",
    "on_gpu",
}  # fmt: skip
TRAITS = {
    "combine", "memory", "unbiased", "omega", "delta", "fixed_size", "stochastic", "lossless", "sparse", "shards",
    "is_mean",
}  # fmt: skip


def answer(capsys, *arguments):
    assert main(["codecs", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_codec_is_listed_with_all_it_promises(capsys):
    listed = answer(capsys)
    assert [one["name"] for one in listed] == codecs.names()
    for one in listed:
        assert set(one) == KEYS
        assert set(one["traits"]) >= TRAITS
        assert one["memory"] == one["traits"]["memory"]
        assert one["summary"].strip()
        assert one["bits_per_element"] > 0
        assert one["on_gpu"].startswith(("Triton", "plain torch: "))
    bits = {one["name"]: one["bits_per_element"] for one in listed}
    assert (bits["none"], bits["fp16"], bits["bf16"]) == (32.0, 16.0, 16.0)
    assert bits["powersgd"] == 32 * 4 * 2048 / 1024**2
    assert 1.0 <= bits["signsgd"] < 1.001


def test_parameters_without_a_kernel_are_told_apart(capsys):
    """Of thc only one aggregation has kernels; which, `tests/kernels/test_gpu_claims.py` counts."""
    plain = "plain torch: sums of codes have no kernel yet"
    told = answer(capsys, "thc")["on_gpu"]
    assert told.startswith("Triton; thc(")
    assert told.endswith(f"aggregation='saturate') in {plain}")
    for aggregation in ("sum", "saturate"):
        assert answer(capsys, f"thc(aggregation='{aggregation}')")["on_gpu"].startswith(plain)
    assert answer(capsys, "fp16")["on_gpu"] == "Triton"


def test_one_codec_with_its_maths(capsys):
    one = answer(capsys, "topk")
    assert set(one) == KEYS | {"docstring", "help"}
    assert all(f"\n    {name}: " in one["help"] for name in one["parameters"])
    assert one["parameters"] == {"ratio": 0.01, "value_bits": 32, "index": "best"}
    assert one["strategies"] == ["all_gather", "scatter_reduce_gather"]
    assert one["docstring"].startswith(one["summary"])
    assert "arXiv" in one["docstring"]


def test_paragraphs_are_broken_where_the_terminal_ends(capsys, people):
    assert doctest.testmod(importlib.import_module("gradwire.cli.codecs")) == (0, 1)
    assert main(["codecs", "topk"]) == 0
    shown = capsys.readouterr().out
    assert (
        "\ncontraction with delta = k/n; runs with error feedback. Workers choose different\ncoordinates, so" in shown
    )
    assert "\nWire: k values of" in shown  # a line of its own stays one


def test_a_spec_is_described_with_its_parameters(capsys):
    one = answer(capsys, "topk(ratio=0.1)")
    assert one["spec"] == "topk(ratio=0.1)"
    assert one["parameters"]["ratio"] == 0.01  # the default
    assert one["traits"]["delta"] == 0.1
    assert one["bits_per_element"] == pytest.approx(0.1 * (32 + 5.25), rel=1e-2)  # Elias-Fano at one in ten


@pytest.mark.parametrize(
    "name, message",
    [
        ("powersg", "gradwire: no codec named 'powersg'; did you mean powersgd?"),
        ("topk(ratio=5)", "gradwire: topk: `ratio` must be the share kept, in (0, 1], got 5"),
        ("topk(ratoi=0.1)", "gradwire: topk: has no parameter `ratoi`; did you mean ratio?"),
        (
            "topk(",
            "gradwire: codec spec 'topk(' cannot be read; write a name, or a name with literal arguments such as "
            '"topk(ratio=0.01)"',
        ),
    ],
)
def test_bad_names(capsys, name, message):
    assert main(["codecs", name]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message + "\n")
