"""Gradient compression for data-parallel training that pays off, or says that it does not.

    handle = gradwire.attach(ddp_model)                            # try what pays, and keep it
    handle = gradwire.attach(ddp_model, "eightbit")                # compress DDP's gradients
    cluster = gradwire.VirtualCluster(workers=4, codec="qsgd")     # the same, N workers in one process
    advice = gradwire.advise(model="resnet50", batch=64, gpus=16, bandwidth="10gbit")     # is it worth it?

Names are loaded when they are first used, so that the command line answers without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire import grace
    from gradwire.adaptive import Accordion, AccordionBatch, AdaQS, Warmup
    from gradwire.cluster import VirtualCluster
    from gradwire.collectives.alarm import shared_fate
    from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, codec, codec_names, register
    from gradwire.core.errors import (
        CodecError,
        ConfigError,
        CorruptPayload,
        ExchangeFailed,
        GradwireError,
        Incompatible,
        MissingExtra,
        StateMismatch,
        UnknownName,
    )
    from gradwire.core.exchange import Gather, Max, Payload, Route, Scatter, Sum
    from gradwire.diagnosis.doctor import doctor
    from gradwire.integrations.dcp import RankState
    from gradwire.integrations.ddp import Handle, attach
    from gradwire.integrations.local_steps import LocalSteps
    from gradwire.planner.questions import advise, predict, whatif
    from gradwire.trackers import open_tracker

__version__ = "0.1.0"

__all__ = [
    "Accordion",
    "AccordionBatch",
    "AdaQS",
    "Codec",
    "CodecError",
    "Combine",
    "ConfigError",
    "Context",
    "CorruptPayload",
    "ExchangeFailed",
    "Gather",
    "GradwireError",
    "Handle",
    "Incompatible",
    "LocalSteps",
    "Max",
    "MissingExtra",
    "Payload",
    "RankState",
    "Reduced",
    "Route",
    "Scatter",
    "StateMismatch",
    "Sum",
    "Traits",
    "UnknownName",
    "VirtualCluster",
    "Warmup",
    "advise",
    "attach",
    "codec",
    "codec_names",
    "doctor",
    "grace",
    "open_tracker",
    "predict",
    "register",
    "shared_fate",
    "whatif",
]

_HOMES = {
    "gradwire.adaptive": ["Accordion", "AccordionBatch", "AdaQS", "Warmup"],
    "gradwire.cluster": ["VirtualCluster"],
    "gradwire.collectives.alarm": ["shared_fate"],
    "gradwire.core.codec": ["Codec", "Combine", "Context", "Reduced", "Traits", "codec", "codec_names", "register"],
    "gradwire.core.errors": [
        "CodecError",
        "ConfigError",
        "CorruptPayload",
        "ExchangeFailed",
        "GradwireError",
        "Incompatible",
        "MissingExtra",
        "StateMismatch",
        "UnknownName",
    ],
    "gradwire.core.exchange": ["Gather", "Max", "Payload", "Route", "Scatter", "Sum"],
    "gradwire.diagnosis.doctor": ["doctor"],
    "gradwire.grace": ["grace"],
    "gradwire.integrations.dcp": ["RankState"],
    "gradwire.integrations.ddp": ["Handle", "attach"],
    "gradwire.integrations.local_steps": ["LocalSteps"],
    "gradwire.planner.questions": ["advise", "predict", "whatif"],
    "gradwire.trackers": ["open_tracker"],
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    home = import_module(_HOME[name])
    value = globals()[name] = home if home.__name__ == f"gradwire.{name}" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
