"""Gradient compression for data-parallel training that pays off, or says that it does not.

handle = gradwire.attach(ddp_model, "topk(ratio=0.01)")        # compress DDP's gradients
cluster = gradwire.VirtualCluster(workers=4, codec="qsgd")     # the same, N workers in one process

What needs torch is imported at first use: `gradwire --version` and readers of records answer at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gradwire.core.errors import (
    ConfigError,
    ExchangeFailed,
    GradwireError,
    Incompatible,
    MissingExtra,
    StateMismatch,
    UnknownName,
)

if TYPE_CHECKING:
    from gradwire.cluster import VirtualCluster
    from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, codecs, register
    from gradwire.core.exchange import Gather, Max, Payload, Scatter, Sum
    from gradwire.integrations.ddp import Handle, attach

    codec = codecs.build
    codec_names = codecs.names

__version__ = "0.1.0"

__all__ = [
    "Codec",
    "Combine",
    "ConfigError",
    "Context",
    "ExchangeFailed",
    "Gather",
    "GradwireError",
    "Handle",
    "Incompatible",
    "Max",
    "MissingExtra",
    "Payload",
    "Reduced",
    "Scatter",
    "StateMismatch",
    "Sum",
    "Traits",
    "UnknownName",
    "VirtualCluster",
    "attach",
    "codec",
    "codec_names",
    "register",
]

if not TYPE_CHECKING:  # a type checker reads the imports above instead, and finds misspelt names
    _HOMES = {
        "gradwire.cluster": ["VirtualCluster"],
        "gradwire.core.codec": ["Codec", "Combine", "Context", "Reduced", "Traits", "register"],
        "gradwire.core.exchange": ["Gather", "Max", "Payload", "Scatter", "Sum"],
        "gradwire.integrations.ddp": ["Handle", "attach"],
    }
    _HOME = {name: module for module, names in _HOMES.items() for name in names}

    def __getattr__(name):
        if name in ("codec", "codec_names"):
            registry = import_module("gradwire.core.codec").codecs
            globals().update(codec=registry.build, codec_names=registry.names)
        elif name in _HOME:
            globals()[name] = getattr(import_module(_HOME[name]), name)
        else:
            raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})
