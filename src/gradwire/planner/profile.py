"""What is known about some hardware, and from where: times of models, costs of codecs, links, contention.

A profile is a TOML file that people can read and edit. Each table of it has a `source`, which begins with one of
``measured``, ``published``, ``inferred`` or ``assumed``; answers repeat it. Profiles of known hardware are shipped in
``perf/data``; `gradwire calibrate` writes one of the machine at hand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import NormalDist
from typing import Any

from gradwire.core.errors import ConfigError, UnknownName, suggestion
from gradwire.core.registry import Check
from gradwire.planner.cluster import KINDS, Cluster, Link, check_gpus, check_rate
from gradwire.planner.cost import SUMS
from gradwire.planner.spec import same
from gradwire.planner.timeline import Overlap

SOURCES = ("measured", "published", "inferred", "assumed")
LOCAL = "this-machine"
LOCAL_FILE = Path("this-machine.toml")  # where `gradwire calibrate` writes unless told otherwise


@dataclass(frozen=True, kw_only=True)
class Law:
    """seconds = launches x the device's launch + passes x 4 bytes an element over the device's memory speed."""

    launches: float = 0.0
    passes: float = 0.0

    def seconds(self, elements: float, device: Device) -> float:
        moved = self.passes * 4 * elements / device.pass_bytes_per_second
        return self.launches * device.launch_seconds + moved


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where gradients are computed and encoded."""

    memory_bytes: float
    launch_seconds: float
    pass_bytes_per_second: float
    source: str
    handling: Mapping[str, Law] = field(default_factory=dict)  # by mode: queues, joining and copying of a codec's step


@dataclass(frozen=True, kw_only=True)
class Times:
    """Of one model at one batch size, without any exchange."""

    batch: int
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    source: str
    memory_bytes: float | None = None
    jitter_seconds: float = 0.0  # standard deviation of a rank's step: the slowest one keeps all others waiting

    def slowest(self, ranks: int) -> float:
        """By how much the slowest of so many ranks is expected to be later than their mean."""
        return self.jitter_seconds * latest(ranks)


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Encode and decode of one model's gradients, where only that was measured."""

    encode_seconds: float
    decode_seconds: float
    source: str


@dataclass(frozen=True, kw_only=True)
class CodecCost:
    """`decode` is once for every gradient that is decoded: of all peers under all-gather."""

    encode: Law | None
    decode: Law | None
    source: str
    models: Mapping[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a network does with its nominal rate. `kinds`: what differs for some kinds of exchange."""

    latency_seconds: float
    efficiency: float
    source: str
    start_seconds: float = 0.0  # of an exchange, beside its messages
    bits_per_second: float | None = None  # as calibrated; a question may ask for another rate
    sums: str = "ring"  # how all-reduces travel, unless a question says
    kinds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All of it."""

    name: str
    description: str
    device: Device
    network: Network
    inside: Link
    inside_source: str
    overlap: Overlap
    overlap_source: str
    models: Mapping[str, tuple[Times, ...]]
    codecs: Mapping[str, CodecCost]
    about: Mapping[str, Any] = field(default_factory=dict)  # how it was made, as far as the file says

    @classmethod
    def load(cls, name: str | Path | Profile) -> Profile:
        """A shipped profile by its name, or any by its path."""
        return name if isinstance(name, Profile) else _load(str(name))

    def times(self, model: str, batch: int) -> Times:
        """Of a model at a batch size: as given, between two given ones, or in proportion to the nearest."""
        if model not in self.models:
            known = ", ".join(sorted(self.models)) or "no model"
            raise UnknownName(
                f"profile {self.name} has no times of {model!r}, only of {known}; give --backward (such as 120ms), "
                f"or measure: gradwire calibrate --model {model}"
            )
        return _at_batch(self.models[model], batch)

    def cluster(self, gpus: int, gpus_per_node: int, bandwidth: str | float, latency: float | None = None) -> Cluster:
        """GPUs of this kind, with network cards of a nominal rate."""
        check_gpus(gpus, gpus_per_node)
        rate, network = check_rate(bandwidth), self.network

        def link(own: Mapping[str, float]) -> Link:
            kept = own.get("latency_seconds", network.latency_seconds)
            return Link(
                latency_seconds=kept if latency is None else latency,
                bits_per_second=rate,
                efficiency=own.get("efficiency", network.efficiency),
                start_seconds=own.get("start_seconds", network.start_seconds),
            )

        return Cluster(
            gpus=gpus,
            gpus_per_node=gpus_per_node,
            network=link({}),
            inside=self.inside,
            kinds={kind: link(own) for kind, own in network.kinds.items()},
        )

    def with_codecs(self, costs: Mapping[str, CodecCost]) -> Profile:
        """The same with other costs for some codecs."""
        return replace(self, codecs={**self.codecs, **costs})

    def cost(self, codec: str) -> tuple[CodecCost, str] | None:
        """What is known of a codec's cost, and its source; with other parameters of the same codec if need be."""
        written = next((c for c in self.codecs if same(c, codec)), None)
        if written is not None:
            return self.codecs[written], self.codecs[written].source
        name = codec.partition("(")[0]
        near = [c for c in self.codecs if c.partition("(")[0] == name]
        if not near:
            return None
        return self.codecs[near[0]], f"inferred: as {near[0]}, which is {self.codecs[near[0]].source}"


@cache
def latest(ranks: int) -> float:
    """The mean of the largest of so many standard normal numbers (Blom's approximation of its place).

    >>> round(latest(2), 2), round(latest(8), 2)
    (0.59, 1.43)
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def names() -> list[str]:
    """Shipped profiles, and this machine's where it was calibrated."""
    data = files("gradwire.planner") / "data"
    found = sorted(f.name.removesuffix(".toml") for f in data.iterdir() if f.name.endswith(".toml"))
    return [*found, LOCAL] if LOCAL_FILE.exists() else found


def _load(name: str) -> Profile:
    content = _shipped(name)
    where = name
    if content is None:
        path = LOCAL_FILE if name == LOCAL else Path(name)
        if not path.is_file():
            hint = "gradwire calibrate makes it" if name == LOCAL else suggestion(name, [*names(), LOCAL])
            raise UnknownName(f"no hardware profile {name!r}, and no file of that name; {hint}")
        content, where = path.read_bytes(), path.name
    return _parsed(content, where)


def _shipped(name: str) -> bytes | None:
    """The file of a shipped profile; None: there is none of that name."""
    file = files("gradwire.planner") / "data" / f"{name}.toml"
    return file.read_bytes() if file.is_file() else None


@cache
def _parsed(content: bytes, where: str) -> Profile:
    """What a file holds: of each content once, since a file may be written again."""
    try:
        return parse(tomllib.loads(content.decode()))
    except UnicodeDecodeError as problem:
        raise ConfigError(
            f"profile {where}: a text in TOML was wanted, got no text; name a file that `gradwire calibrate` wrote"
        ) from problem
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as problem:
        what = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
        raise ConfigError(
            f"profile {where}: cannot be read ({what}); write it again: gradwire calibrate -o {where}"
        ) from problem


def parse(content: Mapping[str, Any]) -> Profile:
    """A profile from what a TOML file holds; tables that it has not are those of the shipped one that it is `like`."""
    if "like" in content:
        base = _shipped(content["like"])
        if base is None:
            raise ConfigError(f"profile {content['name']}: `like` must name a shipped profile, got {content['like']!r}")
        content = tomllib.loads(base.decode()) | dict(content)
    network, inside, overlap = content["network"], content["inside"], content["overlap"]
    profile = Profile(
        name=content["name"],
        description=content["description"],
        device=_device(content["device"]),
        network=Network(**network),
        inside=Link(latency_seconds=inside["latency_seconds"], bits_per_second=inside["bits_per_second"]),
        inside_source=inside["source"],
        overlap=Overlap(overlap["network_slowdown"], overlap["compute_sharing"]),
        overlap_source=overlap["source"],
        models={
            model: tuple(sorted((Times(**t) for t in entries), key=lambda t: t.batch))
            for model, entries in content.get("models", {}).items()
        },
        codecs={codec: _codec_cost(codec, entry) for codec, entry in content.get("codecs", {}).items()},
        about=content.get("about", {}),
    )
    _check(profile)
    return profile


def _device(entry: Mapping[str, Any]) -> Device:
    laws = {mode: Law(**law) for mode, law in entry.get("handling", {}).items()}
    return Device(**{**entry, "handling": laws})


def _codec_cost(codec: str, entry: Mapping[str, Any]) -> CodecCost:
    unknown = set(entry) - {"encode", "decode", "source", "models"}
    if unknown:
        raise ConfigError(f"profile: codec {codec!r} has unknown entries: {', '.join(sorted(unknown))}")
    return CodecCost(
        encode=Law(**entry["encode"]) if "encode" in entry else None,
        decode=Law(**entry["decode"]) if "decode" in entry else None,
        source=entry.get("source", "inferred: from the model figures"),
        models={model: Whole(**whole) for model, whole in entry.get("models", {}).items()},
    )


def _check(profile: Profile) -> None:
    """Times are not negative, and every table says where it is from."""
    sources = [profile.device.source, profile.network.source, profile.inside_source, profile.overlap_source]
    sources += [t.source for entries in profile.models.values() for t in entries]
    sources += [c.source for c in profile.codecs.values()]
    for source in sources:
        if source.partition(":")[0] not in SOURCES:
            raise ConfigError(f"profile {profile.name}: `source` must begin with {', '.join(SOURCES)}, got {source!r}")
    for model, entries in profile.models.items():
        for times in entries:
            if min(times.forward_seconds, times.backward_seconds, times.optimizer_seconds) < 0 or times.batch < 1:
                raise ConfigError(f"profile {profile.name}: times of {model} must not be negative")
    for kind in profile.network.kinds:
        if kind not in KINDS:
            raise ConfigError(f"profile {profile.name}: network.kinds.{kind} is none of {', '.join(KINDS)}")
    if profile.network.sums not in SUMS:
        known = ", ".join(SUMS)
        raise ConfigError(f"profile {profile.name}: network.sums must be one of {known}, got {profile.network.sums!r}")


def _at_batch(entries: tuple[Times, ...], batch: int) -> Times:
    Check("gradwire").integer("batch", batch, 1)
    exact = [t for t in entries if t.batch == batch]
    if exact:
        return exact[0]
    if len(entries) > 1:
        first = next((i for i, t in enumerate(entries) if t.batch > batch), len(entries) - 1)
        low, high = entries[max(first - 1, 0)], entries[max(first, 1)]
        how = f"inferred: on the line through batch {low.batch} and {high.batch} ({low.source})"
    else:
        low = high = entries[0]
        how = f"inferred: in proportion to batch {low.batch} ({low.source})"
    return Times(
        batch=batch,
        forward_seconds=_on_line(low, high, batch, "forward_seconds"),
        backward_seconds=_on_line(low, high, batch, "backward_seconds"),
        optimizer_seconds=low.optimizer_seconds,  # goes by parameters, not by examples
        source=how,
        jitter_seconds=_on_line(low, high, batch, "jitter_seconds"),
    )


def _on_line(low: Times, high: Times, batch: int, name: str) -> float:
    """Between two batch sizes or beyond them; never less than in proportion to the smaller one."""
    first, last = float(getattr(low, name)), float(getattr(high, name))
    proportional = first * batch / low.batch
    if low is high:
        return proportional
    found = first + (last - first) * (batch - low.batch) / (high.batch - low.batch)
    return max(found, min(proportional, first))
