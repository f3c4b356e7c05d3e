"""The help of `gradwire.adaptive`: every example runs, and everything public has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import gradwire.adaptive

MODULES = [
    importlib.import_module(f"gradwire.adaptive.{module.name}")
    for module in pkgutil.iter_modules(gradwire.adaptive.__path__)
]
PUBLIC = [
    thing
    for module in MODULES
    for name, thing in vars(module).items()
    if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__ and callable(thing)
    if inspect.isclass(thing) or inspect.isfunction(thing)
]
METHODS = [
    (cls, name, function)
    for cls in PUBLIC
    if inspect.isclass(cls)
    for name, function in vars(cls).items()
    if not name.startswith("_") and inspect.isfunction(getattr(function, "__func__", function))
]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.failed == 0
    assert found.attempted > 0


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda t: t.__qualname__)
def test_everything_public_has_an_example(thing):
    text = inspect.getdoc(thing)
    assert "Example:\n    >>> " in text
    if thing is not gradwire.adaptive.Controller:  # has no parameters of its own
        assert "Args:\n" in text


@pytest.mark.parametrize(
    ("cls", "name", "function"), METHODS, ids=[f"{cls.__name__}.{name}" for cls, name, _ in METHODS]
)
def test_every_method_tells_its_arguments(cls, name, function):
    text = inspect.getdoc(function)
    assert text
    told = text.partition("Args:\n")[2]
    for argument in set(inspect.signature(function.__get__(cls)).parameters) - {"self"}:
        assert f"    {argument}: " in told, argument
