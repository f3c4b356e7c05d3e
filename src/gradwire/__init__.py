"""Gradient compression for data-parallel training that pays off, or says that it does not.

handle = gradwire.attach(ddp_model, "topk(ratio=0.01)")        # compress DDP's gradients
cluster = gradwire.VirtualCluster(workers=4, codec="qsgd")     # the same, N workers in one process
"""

from gradwire.cluster import VirtualCluster
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, codecs, register
from gradwire.core.errors import (
    ConfigError,
    ExchangeFailed,
    GradwireError,
    Incompatible,
    MissingExtra,
    StateMismatch,
    UnknownName,
)
from gradwire.core.exchange import Gather, Max, Payload, Scatter, Sum
from gradwire.integrations.ddp import Handle, attach

__version__ = "0.1.0"
codec = codecs.build

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
    "codecs",
    "register",
]
