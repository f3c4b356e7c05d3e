"""The names a user may lean on. Adding or removing one is a conscious edit of this list."""

from __future__ import annotations

import inspect

import pytest

import gradwire

PUBLIC = {
    "Accordion", "AccordionBatch", "AdaQS", "Codec", "CodecError", "Combine", "ConfigError", "Context",
    "CorruptPayload", "ExchangeFailed", "Gather", "GradwireError", "Handle", "Incompatible", "LocalSteps", "Max",
    "MissingExtra",
    "Payload", "RankState", "Reduced", "Route", "Scatter", "StateMismatch", "Sum", "Traits", "UnknownName",
    "VirtualCluster", "Warmup", "advise", "attach", "codec", "codec_names", "doctor", "grace", "open_tracker",
    "predict", "register", "shared_fate", "whatif",
}  # fmt: skip


def test_all_is_the_public_list():
    assert set(gradwire.__all__) == PUBLIC
    assert all(hasattr(gradwire, name) for name in PUBLIC)
    assert set(gradwire._HOME) == PUBLIC <= set(dir(gradwire))
    with pytest.raises(AttributeError, match=r"^module 'gradwire' has no attribute 'nothing'$"):
        gradwire.nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted(PUBLIC - {"Reduced"}))
def test_every_public_name_is_documented(name):
    assert (getattr(gradwire, name).__doc__ or "").strip()


def test_exceptions_are_drawn_in_the_tree():
    from gradwire.core import errors

    tree = errors.__doc__ or ""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.GradwireError)]
    assert len(classes) == 11
    assert all(c.__name__ in tree for c in classes)


def test_signatures_of_the_front_doors():
    assert list(inspect.signature(gradwire.attach).parameters) == [
        "model", "codec", "task", "controller", "replicas", "memory", "strategy", "mode", "tensors", "seed",
        "optimizer", "scaler", "nmse_every", "graphs", "check", "checksum", "dry_run", "workers",
    ]  # fmt: skip
    assert list(inspect.signature(gradwire.VirtualCluster).parameters) == [
        "workers", "codec", "memory", "strategy", "seed", "controller", "tensors", "nmse_every",
    ]  # fmt: skip


def test_the_old_name_of_an_argument_is_refused_as_python_does():
    with pytest.raises(TypeError, match="unexpected keyword argument 'compress'"):
        gradwire.attach(None, "topk", compress="all")


def test_version_is_the_packages():
    from importlib.metadata import PackageNotFoundError, version

    try:
        assert version("gradwire") == gradwire.__version__
    except PackageNotFoundError:
        pytest.skip("not installed as a package")
