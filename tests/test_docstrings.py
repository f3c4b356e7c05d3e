"""Examples in docstrings run, and every codec's help names all of its parameters."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import torch

import gradwire
from gradwire.core.codec import codecs

PACKAGES = ["gradwire.codecs"]  # all modules in these
NAMES = {"gradwire": gradwire, "torch": torch}  # what an example may use without importing it
OURS = [name for name in codecs.names() if codecs.cls(name).__module__.startswith("gradwire.")]


def modules():
    """The names of the modules whose examples run."""
    names = list(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        names += [found.name for found in pkgutil.walk_packages(path, f"{package}.")]
    return names


def arguments(doc):
    """Name -> text of what the section `Args:` of a docstring lists."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", doc, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in listed}


@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    module, runner = importlib.import_module(name), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name, extraglobs=NAMES):
        torch.manual_seed(0)
        report = []
        runner.run(test, out=report.append)
        assert not report, "".join(report)


@pytest.mark.parametrize("name", OURS)
def test_a_codec_explains_every_parameter_and_shows_an_example(name):
    cls = codecs.cls(name)
    assert cls.__doc__, f"{name}: its class has no docstring"
    doc = inspect.cleandoc(cls.__doc__)
    assert list(arguments(doc)) == [f.name for f in dataclasses.fields(cls) if f.init]
    assert re.search(r"^Example:\n(.*\n)*    >>> ", doc, re.MULTILINE)
    assert re.fullmatch(r"[A-Z].*\.", doc.splitlines()[0]), f"{name}: the first line must be one sentence"
