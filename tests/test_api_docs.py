"""The help of every public name: what it is, what each argument is, and an example that runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap

import pytest

import gradwire
from gradwire.core.errors import GradwireError
from gradwire.engine import Engine
from gradwire.session import Session
from gradwire.trackers import Tracker

CONTROLLERS = {"Accordion", "AccordionBatch", "AdaQS", "Warmup"}  # tests of gradwire.adaptive look at these
ALIASES = {"Reduced"}  # a type, which has no docstring of its own
NAMES = sorted(set(gradwire.__all__) - CONTROLLERS - ALIASES)
# classes whose methods users call or write
CLASSES = [
    *(gradwire.Handle, gradwire.VirtualCluster, gradwire.LocalSteps, gradwire.RankState, Session),
    *(gradwire.Codec, gradwire.Payload),
    *(gradwire.Sum, gradwire.Max, gradwire.Gather, gradwire.Scatter, gradwire.Route, Tracker),
]
# a training is shown from beginning to end: its methods are in the example of the class, or in their own
SHOWN = [gradwire.Handle, gradwire.VirtualCluster, gradwire.LocalSteps]
UNSHOWN = {"on_bucket", "observe"}  # what DDP calls; what one codec needs
MODULES = [
    "gradwire.cluster",
    "gradwire.conformance.target",
    "gradwire.core.codec",
    "gradwire.core.context",
    "gradwire.core.errors",
    "gradwire.core.exchange",
    "gradwire.core.layout",
    "gradwire.core.packed",
    "gradwire.core.random",
    "gradwire.core.registry",
    "gradwire.core.state",
    "gradwire.core.traits",
    "gradwire.diagnosis.doctor",
    "gradwire.frameworks.bridge",
    "gradwire.frameworks.trees",
    "gradwire.grace",
    "gradwire.grace.adapter",
    "gradwire.integrations.autopilot",
    "gradwire.integrations.base_handle",
    "gradwire.integrations.checks",
    "gradwire.integrations.dcp",
    "gradwire.integrations.ddp",
    "gradwire.integrations.handle",
    "gradwire.integrations.payoff",
    "gradwire.integrations.window",
    "gradwire.integrations.trial",
    "gradwire.integrations.local_steps",
    "gradwire.kernels.bitpack",
    "gradwire.kernels.random",
    "gradwire.kernels.rows",
    "gradwire.kernels.scatter",
    "gradwire.kernels.select",
    "gradwire.planner.questions",
    "gradwire.session",
    "gradwire.tracing",
    "gradwire.trackers.tracker",
]


def methods(cls):
    """Name -> public method or property, its own or inherited from us."""
    found = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("gradwire."):
            found |= {n: f for n, f in vars(base).items() if not n.startswith("_")}
    return {n: f for n, f in found.items() if inspect.isfunction(f) or isinstance(f, property)}


METHODS = [(cls, name, method) for cls in CLASSES for name, method in methods(cls).items()]


def told(text):
    """The arguments that a docstring explains."""
    section = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^    (\w+): \S", section[1], re.MULTILINE) if section else []


def taken(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_explained(name):
    value = getattr(gradwire, name)
    text = inspect.getdoc(value)
    assert re.match(r"[A-Z`].*[.:]", text), "a first line that says what it is"
    assert re.search(r"^Example:\n(.*\n)*?    >>> ", text, re.MULTILINE), "an example"
    if inspect.isfunction(value):
        assert told(text) == taken(value)
    elif inspect.isclass(value) and not issubclass(value, (GradwireError, gradwire.Combine, gradwire.Codec)):
        assert value is gradwire.Handle or told(text) == taken(value)  # a handle is made by attach


@pytest.mark.parametrize("cls", [Session, Engine], ids=["Session", "Engine"])
def test_what_frameworks_use_is_explained(cls):
    assert sorted(told(inspect.getdoc(cls))) == sorted(taken(cls))


@pytest.mark.parametrize("cls, name, method", METHODS, ids=[f"{cls.__name__}.{name}" for cls, name, _ in METHODS])
def test_a_method_is_explained(cls, name, method):
    text = inspect.getdoc(method)
    assert text
    if not isinstance(method, property):
        assert told(text) == taken(method)


@pytest.mark.parametrize("cls", SHOWN, ids=[cls.__name__ for cls in SHOWN])
def test_examples_show_every_method(cls):
    texts = [inspect.getdoc(thing) or "" for thing in (cls, *methods(cls).values())]
    lines = "\n".join(line for text in texts for line in re.findall(r"^ +(?:>>>|\.\.\.) .*", text, re.MULTILINE))
    for name in set(methods(cls)) - UNSHOWN:
        assert re.search(rf"\.{name}\b", lines), f"no example calls {name}"


def test_the_exceptions_are_told_apart_in_the_tree():
    for cls in GradwireError.__subclasses__():
        assert re.match(r"[A-Z].*\.", inspect.getdoc(cls))


def test_examples_run(tmp_path):
    """In a process of its own: they register a codec, which the conformance suite must not meet, and start groups."""
    script = """
        import doctest, importlib, sys, warnings
        warnings.filterwarnings("ignore", message=".*has one rank, so there is nothing to send")
        for name in sys.argv[1:]:
            found = doctest.testmod(importlib.import_module(name))
            if not found.attempted:
                sys.exit(f"{name} has no example")
            if found.failed:
                sys.exit(1)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *MODULES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
