"""A profile as the text of its TOML file: few digits, one table a concept, every table with its source."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gradwire.planner.profile import CodecCost, Law, Profile

DIGITS = 4


def dump(profile: Profile, like: Profile | None = None) -> str:
    """What `Profile.load` reads again, to four digits.

    Args:
        profile: to be written.
        like: a shipped one; what both have alike is left to its file.
    """
    lines = [
        "# A hardware profile of gradwire: see `gradwire calibrate --help`. Seconds, bytes, bits a second.",
        f"name = {_value(profile.name)}",
        f"description = {_value(profile.description)}",
    ]
    parts, shared = _parts(profile), {}
    if like is not None:
        lines.append(f"like = {_value(like.name)}  # in all that is not said here")
        shared = _parts(like)
    return "\n".join(lines + [line for name, own in parts.items() if own != shared.get(name) for line in own]) + "\n"


def _parts(profile: Profile) -> dict[str, list[str]]:
    """Lines of the file, by the name of their table."""
    device = {k: v for k, v in dataclasses.asdict(profile.device).items() if k != "handling"}
    lines = _table("device", device)
    if profile.device.handling:
        lines += ["", "[device.handling]  # of a codec's step, by mode, beside its units"]
        lines += [f"{mode} = {_law(law)}" for mode, law in sorted(profile.device.handling.items())]
    parts = {"about": _table("about", profile.about) if profile.about else [], "device": lines}
    network = {k: v for k, v in dataclasses.asdict(profile.network).items() if k != "kinds" and v is not None}
    lines = _table("network", network)
    for kind, own in profile.network.kinds.items():
        lines += _table(f"network.kinds.{kind}", own)
    inside = {
        "latency_seconds": profile.inside.latency_seconds,
        "bits_per_second": profile.inside.bits_per_second,
        "source": profile.inside_source,
    }
    parts |= {"network": lines, "inside": _table("inside", inside)}
    parts["overlap"] = _table("overlap", {**dataclasses.asdict(profile.overlap), "source": profile.overlap_source})
    lines = []
    for model, entries in sorted(profile.models.items()):
        for times in entries:
            kept = {k: v for k, v in dataclasses.asdict(times).items() if v is not None}
            lines += ["", f"[[models.{_key(model)}]]", *_pairs(kept)]
    costs = [line for codec, cost in sorted(profile.codecs.items()) for line in _codec(codec, cost)]
    return parts | {"models": lines, "codecs": costs}


def _codec(codec: str, cost: CodecCost) -> list[str]:
    lines = ["", f"[codecs.{_key(codec)}]"]
    lines += [f"{name} = {_law(law)}" for name in ("encode", "decode") if (law := getattr(cost, name)) is not None]
    lines.append(f"source = {_value(cost.source)}")
    for model, whole in sorted(cost.models.items()):
        lines += _table(f"codecs.{_key(codec)}.models.{_key(model)}", dataclasses.asdict(whole))
    return lines


def _table(name: str, content: Mapping[str, Any]) -> list[str]:
    return ["", f"[{name}]", *_pairs(content)]


def _pairs(content: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in content.items()]


def _law(law: Law) -> str:
    return f"{{ launches = {_value(law.launches)}, passes = {_value(law.passes)} }}"


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(float(f"{value:.{DIGITS}g}"))
    return json.dumps(str(value), ensure_ascii=False)
