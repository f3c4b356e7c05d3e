"""Steps of other frameworks on emulated hosts: what is asked for, and what is refused."""

from __future__ import annotations

import pytest

from gradwire.core.baselines import COPIED, HANDED, HANDED_COMPILED, NOTHING
from gradwire.core.errors import ConfigError, MissingExtra
from gradwire.laboratory.bench import frameworks


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr("gradwire.laboratory.bench.frameworks.check_installed", lambda package: None)


def test_groups_and_command(installed):
    sweep = frameworks.sweep(frameworks=("jax", "keras-torch"), codecs=("none", "topk"), steps=9)
    assert sweep.command == (
        'gradwire bench frameworks --framework jax --framework keras-torch --codec "none" --codec "topk" --hosts 2 '
        "--rate 200mbit --width 896 --steps 9"
    )
    jax, keras = sweep.groups
    assert [b["configuration"] for b in jax.baselines] == [NOTHING, COPIED, HANDED, HANDED_COMPILED]
    assert [b["configuration"] for b in keras.baselines] == [NOTHING]
    assert [s["configuration"] for s in keras.settings] == ["none", "topk"]
    assert 1.0e6 <= jax.settings[0]["parameters"] <= 1.1e6


def test_bad_requests(installed):
    with pytest.raises(ConfigError, match=r"`framework` must be 'jax' or .* or 'keras-torch', got 'mxnet'"):
        frameworks.sweep(frameworks=("mxnet",))
    with pytest.raises(ConfigError, match="`steps` must be a whole number of at least 8, got 7"):
        frameworks.sweep(steps=7)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("gradwire.frameworks.arrays.importlib.util.find_spec", lambda package: None)
    with pytest.raises(MissingExtra) as caught:
        frameworks.sweep(frameworks=("keras-jax",))
    assert str(caught.value) == "gradwire: keras is not installed; run: pip install 'gradwire[keras]'"
