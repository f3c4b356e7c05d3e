"""Frameworks that are installed are not loaded either: an import that is tried and may fail is seen only here."""

from __future__ import annotations

import importlib.util

import pytest

import test_lean_import

pytestmark = pytest.mark.frameworks
FRAMEWORKS = ("jax", "keras", "tensorflow")


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_it_could_be_loaded(name):
    assert name in test_lean_import.HEAVY
    assert importlib.util.find_spec(name), f"{name} is not installed here, so the tests below say nothing"


@pytest.mark.parametrize("test", [test_lean_import.test_import_is_light, test_lean_import.test_use_is_light])
def test_import_and_use_are_light(test):
    test()


def test_a_bridge_loads_none_of_them():
    use = "from gradwire.frameworks.bridge import Bridge"
    assert test_lean_import.run(f"import sys; {use}; print([m for m in {FRAMEWORKS!r} if m in sys.modules])") == "[]"
