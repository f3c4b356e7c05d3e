"""The options by which `predict`, `advise`, `whatif` and `doctor` are told a set-up, and what becomes of them.

An option is there twice: as the type of a parameter that must be given (`Batch`), and alone (`BATCH`), for a command
that can do without it: ``batch: Annotated[int | None, BATCH] = None``.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradwire.core.baselines import PREDICTED_STRATEGIES

MODEL = typer.Option(
    "--model", metavar="MODEL", help="A model's name, or module:factory for your own.", show_default=False
)
BATCH = typer.Option("--batch", metavar="B", help="Examples a GPU and micro-batch.", show_default=False)
GPUS = typer.Option("--gpus", metavar="N", help="GPUs in all.", show_default=False)
BANDWIDTH = typer.Option(
    "--bandwidth", metavar="RATE", help="Of a node's network card, as in 10gbit.", show_default=False
)
GPUS_PER_NODE = typer.Option("--gpus-per-node", metavar="N", help="GPUs that share a network card.")

Model = Annotated[str, MODEL]
Batch = Annotated[int, BATCH]
Gpus = Annotated[int, GPUS]
Bandwidth = Annotated[str, BANDWIDTH]
GpusPerNode = Annotated[int, GPUS_PER_NODE]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="KIND",
        help="images, language, recommendation or segmentation: codecs must have been tried on such a task; without "
        "it, what the model is for.",
        show_default=False,
    ),
]
MaxLoss = Annotated[
    float,
    typer.Option(
        "--max-loss",
        metavar="POINTS",
        help="What a codec may have lost in our trainings; of a perplexity, twice as many percent.",
    ),
]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware", metavar="PROFILE", help="A profile's name, or the file that `gradwire calibrate` wrote."
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(
        "--latency",
        metavar="TIME",
        help="Of a message between nodes, as in 20us; the profile's if not given.",
        show_default=False,
    ),
]
Mode = Annotated[
    str, typer.Option("--mode", metavar="MODE", help="When codecs exchange: overlap (by bucket) or after_backward.")
]
Strategy = Annotated[
    str,
    typer.Option("--strategy", metavar="NAME", help=f"How payloads travel: {', '.join(PREDICTED_STRATEGIES)}."),
]
Accumulate = Annotated[
    int, typer.Option("--accumulate", metavar="N", help="Micro-batches in a step; only the last is exchanged.")
]
Backward = Annotated[
    str | None,
    typer.Option(
        "--backward",
        metavar="TIME",
        help="Of the backward pass, as in 120ms; the profile's if not given.",
        show_default=False,
    ),
]


Sums = Annotated[
    str | None,
    typer.Option(
        "--sums",
        metavar="WAY",
        help="How all-reduces travel: ring, tree, hierarchical, parameter_server, or auto, the fastest of the first "
        "three; the profile's way if not given.",
        show_default=False,
    ),
]
Switch = Annotated[
    str | None,
    typer.Option(
        "--switch", metavar="RATE", help="Of the switch between all nodes, if that is a limit.", show_default=False
    ),
]


def keywords(*, model: str, latency: str | None, backward: str | None, **given: Any) -> dict[str, Any]:
    """What `gradwire.planner.questions` takes, of what was typed: times in seconds, and nothing that was not given."""
    from gradwire.core.units import parse_seconds
    from gradwire.planner.model import check_strategy

    check_strategy(given.get("strategy", "auto"))
    times = {"latency": latency, "backward": backward}
    seconds = {name: parse_seconds(text) for name, text in times.items() if text is not None}
    return {"model": model} | {name: value for name, value in given.items() if value is not None} | seconds
