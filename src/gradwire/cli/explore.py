"""`gradwire explore`: advice on a page with sliders."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from gradwire.cli.setup import Hardware


def explore(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="The model shown first; without it resnet50, or the first that the profile knows.",
            show_default=False,
        ),
    ] = None,
    hardware: Hardware = "h200",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="Of this machine; 0 takes a free one.", min=0, max=65535)
    ] = 8090,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open nothing.")] = False,
) -> None:
    """Open a page with sliders: which codec pays on a cluster, if any, and how that changes.

    Bandwidth, GPUs, batch, encode time, and the accuracy that a codec may lose; the page answers as `gradwire advise`
    does: step times of safe codecs beside DDP's, the recommendation with what our trainings say, and a map of what to
    use at other bandwidths and numbers of GPUs. It is served on this machine alone, and loads nothing from elsewhere.
    Your own model is there once `gradwire calibrate --model module:factory` has written a profile with its times.

    \b
    Examples:
      gradwire explore --model bert-base --no-browser
      gradwire explore --hardware this-machine
    """
    from gradwire.laboratory.explore.answer import Question, models
    from gradwire.laboratory.explore.server import serve

    if model is None:
        known = models(hardware)
        model = Question.model if Question.model in known or not known else known[0]
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end it
        serve(Question(model=model, hardware=hardware), port=port, show=not no_browser, told=_told)


def _told(address: str) -> None:
    print(f"gradwire explore: {address} (Ctrl-C ends it)", flush=True)
