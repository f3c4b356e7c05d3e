"""The bridge over gloo ranks, for NumPy and torch: against virtual workers, its memory, and what it refuses."""

from __future__ import annotations

import collections
import subprocess
import sys

import numpy
import pytest
import steps
import torch
import torch.distributed as dist
from bridged import check
from ranks import Failure

import gradwire
from gradwire.frameworks.arrays import needed
from gradwire.frameworks.bridge import Bridge
from gradwire.frameworks.trees import Tree

pytestmark = pytest.mark.dist
each = pytest.mark.parametrize("framework", ["numpy", "torch"])
Pair = collections.namedtuple("Pair", "w b")


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@each
@pytest.mark.parametrize("workers", [2, 4])
def test_same_results_as_virtual_workers(pool, framework, workers):
    check(pool, framework, workers, channels_last=False)


@each
def test_none_is_the_mean_that_the_framework_takes(pool, framework):
    assert pool.run(2, steps.own_mean, framework) == [True, True]


@each
def test_a_resumed_bridge_goes_on_bit_for_bit(pool, framework, tmp_path):
    assert pool.run(2, steps.resumed, framework, str(tmp_path)) == [True, True]


@each
def test_all_ranks_begin_as_the_first(pool, framework):
    assert pool.run(2, steps.started, framework) == [([[0, 1, 2], [3, 4, 5]], 7, True)] * 2


@each
def test_arrays_change_hands_without_a_copy(framework):
    given, seen, back = steps.addresses(0, framework)
    assert given == seen == back


def test_results_stay_and_gradients_are_not_overwritten(pool):
    assert pool.run(2, steps.untouched) == [True, True]


@each
def test_ranks_with_other_shapes_are_told(pool, framework):
    for found in pool.outcomes(2, steps.of_other_shapes, framework):
        assert isinstance(found, Failure)
        assert found.kind == "Incompatible"
        assert "Bridge: the ranks disagree. Rank 0 has codec topk(ratio=0.1)" in found.message
        assert "gradients ['w'] float32[64, 64]; rank 1 has" in found.message


def test_gradients_that_change_are_refused(pool):
    for found in pool.outcomes(2, steps.changing):
        assert found.kind == "Incompatible"
        assert found.message.startswith("Bridge: the gradients were [0] float32[2, 2], and are now [0] float32[3, 2].")


@each
def test_a_dead_rank_ends_the_others(pool, framework):
    survivor, dead = pool.outcomes(2, steps.dying, framework, False)
    assert (survivor.kind, dead.kind) == ("ExchangeFailed", "Died")


def test_a_tree_comes_back_as_it_was():
    given = Pair([numpy.ones(1), None], {"x": numpy.zeros(2)})
    tree = Tree.of(given, "test")
    assert tree.names == (".w[0]", ".b['x']")
    back = tree.build(tree.arrays)
    assert isinstance(back, Pair)
    assert back.w[0] is given.w[0]
    assert back.w[1] is None


@pytest.mark.parametrize(
    "tree, sentence",
    [
        ({}, "me: there are no arrays in this dict; hand in the gradients"),
        ([None], "me: there are no arrays in this list; hand in the gradients"),
        ([1.0], "gradwire: arrays of NumPy, torch, JAX, TensorFlow can be reduced, got builtins.float; convert it to "),
        (
            [numpy.ones(1), torch.ones(1)],
            "me: [0] is an array of NumPy and [1] of torch; hand in arrays of one framewo",
        ),
    ],
)
def test_what_is_no_tree_of_arrays_is_refused(tree, sentence):
    with pytest.raises(gradwire.GradwireError) as caught:
        Tree.of(tree, "me")
    assert str(caught.value).startswith(sentence)


def test_a_memory_by_learning_rate_wants_it(alone):
    with pytest.warns(UserWarning, match="one rank"):
        bridge = Bridge("topk", memory="error_feedback(by_learning_rate=True)")
    with pytest.raises(gradwire.ConfigError, match=r"follows the learning rate; pass learning_rate=\.\.\."):
        bridge([numpy.ones(2)])


def test_without_a_process_group_it_says_how_to_start():
    with pytest.raises(gradwire.Incompatible, match="Start the ranks with torchrun"):
        Bridge("topk")


@pytest.mark.parametrize("module, extra", [("optax", "jax"), ("keras", "keras"), ("tensorflow", "tensorflow")])
def test_a_missing_extra_is_named(monkeypatch, module, extra):
    def missing(name, *arguments, **options):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("gradwire.frameworks.arrays.importlib.import_module", missing)
    with pytest.raises(gradwire.MissingExtra) as caught:
        needed(module)
    assert str(caught.value) == f"gradwire: {module} is not installed; run: pip install 'gradwire[{extra}]'"


# Where they are installed, they are hidden.
WITHOUT = """
import importlib, sys
sys.modules.update(dict.fromkeys(("jax", "optax", "keras", "tensorflow")))
import gradwire
from gradwire.frameworks import keras, optax_bridge
for call in (
    lambda: importlib.import_module("gradwire.frameworks.jax_codecs"),
    lambda: optax_bridge.through(None),
    lambda: keras.distribute(None, "topk"),
    lambda: keras.average_metrics(None),
):
    try:
        call()
    except gradwire.MissingExtra as problem:
        print(problem)
"""


def test_modules_without_their_extra_say_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=200, check=True)
    packages = (("jax", "jax"), ("optax", "jax"), ("keras", "keras"), ("keras", "keras"))
    wanted = [f"gradwire: {name} is not installed; run: pip install 'gradwire[{extra}]'" for name, extra in packages]
    assert done.stdout.splitlines() == wanted
