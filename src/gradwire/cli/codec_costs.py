"""What a codec of your own costs, for `predict` and `advise`: measured here, or given. It is never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gradwire.planner.profile import CodecCost

Measure = Annotated[
    bool,
    typer.Option("--measure", help="Measure on this machine's CPU what each --codec costs, in the profile's place."),
]
EncodeMs = Annotated[
    float | None,
    typer.Option(
        "--encode-ms",
        metavar="MS",
        help="What the one --codec takes to encode a gradient of the model.",
        show_default=False,
    ),
]
DecodeMs = Annotated[
    float | None,
    typer.Option(
        "--decode-ms", metavar="MS", help="What it takes to decode one worker's gradient.", show_default=False
    ),
]


def with_costs(
    command: str,
    setup: dict[str, Any],
    codecs: Sequence[str],
    measure: bool,
    encode_ms: float | None,
    decode_ms: float | None,
) -> tuple[dict[str, Any], list[str]]:
    """The set-up, its profile with the costs that were asked for or given, and what to know of them.

    Args:
        command: for errors.
        setup: what `gradwire.cli.setup.keywords` returns; of its `model` gradients are encoded, by `gpus` decoded.
        codecs: what `--codec` names.
        measure: run the codecs here.
        encode_ms: a given cost.
        decode_ms: a given cost.
    """
    from gradwire.core.errors import ConfigError
    from gradwire.planner.profile import Profile

    given = encode_ms is not None or decode_ms is not None
    if not measure and not given:
        return setup, []
    if measure and given:
        raise ConfigError(f"{command}: choose --measure, or --encode-ms with --decode-ms, not both")
    if not codecs:
        raise ConfigError(f"{command}: costs are those of a codec; name it with --codec")
    profile, model = Profile.load(setup["hardware"]), setup["model"]
    if measure:
        costs = _measured(codecs, model, setup["gpus"])
        told = f"measured on this machine's CPU, while all else is of {profile.name}: on a GPU they differ"
    else:
        costs = _given(command, codecs, model, encode_ms, decode_ms)
        told = "as given on the command line"
    return setup | {"hardware": profile.with_codecs(costs)}, [f"Costs of {', '.join(costs)}: {told}."]


def _given(
    command: str, codecs: Sequence[str], model: str, encode_ms: float | None, decode_ms: float | None
) -> dict[str, CodecCost]:
    from gradwire.core.errors import ConfigError
    from gradwire.core.registry import Check
    from gradwire.planner.profile import CodecCost, Whole

    if encode_ms is None or decode_ms is None:
        missing = "--encode-ms" if encode_ms is None else "--decode-ms"
        raise ConfigError(
            f"{command}: {missing} is missing: a step both encodes and decodes; give both, 0 if it is free"
        )
    if len(codecs) != 1:
        raise ConfigError(f"{command}: --encode-ms and --decode-ms are those of one codec, got {len(codecs)}")
    check = Check(command)
    for option, value in (("--encode-ms", encode_ms), ("--decode-ms", decode_ms)):
        check.number(option, value, 0.0, 1e9, "milliseconds, 0 or more")
    source = "assumed: given on the command line"
    whole = Whole(encode_seconds=encode_ms / 1e3, decode_seconds=decode_ms / 1e3, source=source)
    return {_spec(codecs[0]): CodecCost(encode=None, decode=None, source=source, models={model: whole})}


def _measured(codecs: Sequence[str], model: str, gpus: int) -> dict[str, CodecCost]:
    import torch

    from gradwire.laboratory.bench import own_costs
    from gradwire.planner.own_workloads import model_shape

    shapes = model_shape(model).shapes
    specs = [_spec(codec) for codec in codecs]
    return own_costs.measure(model, shapes, specs, workers=max(2, gpus), threads=torch.get_num_threads())


def _spec(codec: str) -> str:
    from gradwire.core.codec import codecs

    return codecs.build(codec).spec
