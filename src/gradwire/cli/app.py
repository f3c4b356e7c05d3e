"""The typer app: all commands, and the options before them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.main import get_command

from gradwire import __version__
from gradwire.cli.advise import advise
from gradwire.cli.bench import bench
from gradwire.cli.calibrate import calibrate
from gradwire.cli.check import check
from gradwire.cli.codecs import codecs
from gradwire.cli.demo import demo
from gradwire.cli.doctor import doctor
from gradwire.cli.explore import explore
from gradwire.cli.importing import importing
from gradwire.cli.lab import lab
from gradwire.cli.new_codec import new_codec
from gradwire.cli.predict import predict
from gradwire.cli.report import report
from gradwire.cli.reproduce import reproduce
from gradwire.cli.size import size
from gradwire.cli.tta import tta
from gradwire.cli.validate import validate
from gradwire.cli.whatif import whatif

app = typer.Typer(
    name="gradwire",
    add_completion=False,
    rich_markup_mode=None,  # plain help: the same on a terminal, in a file and in docs/cli.md
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for function in (
    codecs,
    new_codec,
    check,
    size,
    demo,
    predict,
    advise,
    whatif,
    explore,
    tta,
    calibrate,
    validate,
    reproduce,
    report,
):
    app.command()(importing(function))
whole = {"allow_interspersed_args": False}  # what follows CMD is CMD's
app.command(context_settings=whole)(importing(lab))
app.command(context_settings=whole)(importing(doctor))
app.add_typer(bench)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gradwire {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Gradient compression for data-parallel training that pays off, or says that it does not.

    Commands print a table on a terminal, and JSON with --json or when piped.

    \b
    Example:
      gradwire demo
    """


def command() -> Any:
    """What runs a command line: called with the list of arguments."""
    return get_command(app)
