"""`gradwire validate`: predicted step times beside measured ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.calibrate import parse_place
from gradwire.cli.output import AsJson, RecordFile, check_output, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record


def validate(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDS...", help="Files of records, of steps or of trainings, or folders.", show_default=False
        ),
    ],
    place: Annotated[
        str | None,
        typer.Option(
            "--place",
            metavar="HOSTS@RATE",
            help="Calibrate on the records of this place, such as 4@500mbit, and predict all others blind.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        list[str] | None,
        typer.Option(
            "--hold-out",
            metavar="MODEL",
            help="Of this model calibrate with its times only, and predict nothing but it; may be repeated.",
            show_default=False,
        ),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", metavar="PROFILE", help="Or predict all with this profile.", show_default=False),
    ] = None,
    record: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict measured settings without looking at them, and say how far off that is.

    With --place the profile is made from one number of hosts and one rate; every other setting of the records is
    predicted from it. Errors are of whole steps, relative to the measured median.

    \b
    Example:
      gradwire validate steps.jsonl --place 4@500mbit
    """
    from gradwire.core import records as store
    from gradwire.core.errors import ConfigError
    from gradwire.core.training_records import trainings
    from gradwire.laboratory.bench import prediction
    from gradwire.planner import calibrate as fitting
    from gradwire.planner.profile import Profile

    check_output("validate", "--record", record)
    if (place is None) == (hardware is None):
        raise ConfigError("validate: say what to predict from: either --place 4@500mbit, or --hardware PROFILE")
    found = store.load_all("validate", records, fitting.FITTED)
    where = None if place is None else parse_place(place)
    if where is None:
        profile = Profile.load(str(hardware))
    else:
        profile = fitting.fit(
            found, prediction.workload_of, name=f"{place}", description="", place=where, held_out=held_out or ()
        )
    asked = [r for r in found if not held_out or r.what.get("model") in held_out]
    said = {"place": [place] if place else [], "hardware": [hardware] if hardware else [], "hold-out": held_out or []}
    options = "".join(f" --{name} {value}" for name, values in said.items() for value in values)
    command = f"gradwire validate {' '.join(path.name for path in records)}{options}"
    predictions = prediction.predict_all(asked, profile, where, command)
    if not predictions:
        if trained := trainings(asked):
            reasons = {r: None for lines in trained for r in prediction.untold(lines[0], profile)}
            raise ConfigError(
                f"validate: the records of these trainings cannot be predicted; missing: {', '.join(reasons)}. Say it "
                "when a training is recorded: handle.watch(record=..., about={'model': 'resnet50', 'batch': 64, "
                "'network': '10gbit', 'hosts': 4})"
            )
        raise ConfigError(
            "validate: there is no step record of another place whose model the profile knows, and no record of a "
            "training of such a model; measure more: gradwire bench step --rate 200mbit --rate 1gbit"
        )
    if record is not None:
        store.append(record, predictions)
    emit(result(predictions), as_json, lambda: _page(predictions))


def result(predictions: list[Record]) -> dict[str, Any]:
    """Everything, ready for JSON."""
    from gradwire.planner import validate as errors

    return {
        "settings": len(predictions),
        "calibrated_on": predictions[0].outcome["calibrated_on"],
        "families": [dataclasses.asdict(e) for e in errors.by(predictions, errors.family)],
        "configurations": [dataclasses.asdict(e) for e in errors.by(predictions, errors.configuration)],
        "predictions": [
            {
                **r.what,
                "predicted_seconds": r.samples[0],
                "measured_seconds": r.outcome["measured_seconds"],
                "error": r.outcome["error"],
            }
            for r in predictions
        ],
    }


def _page(predictions: list[Record]) -> RenderableType:
    from gradwire.planner import validate as errors

    table = Table(box=SIMPLE_HEAD)
    for heading in ("configuration", "settings", "median\nerror", "largest\nerror", "bias", "spread of\nmeasurement"):
        table.add_column(heading, justify="left" if heading == "configuration" else "right")
    rows = [*errors.by(predictions, errors.family), *errors.by(predictions, errors.configuration)]
    for e in rows:
        cells = (f"{e.median:.1%}", f"{e.maximum:.1%}", f"{e.bias:+.1%}", f"{e.spread:.1%}")
        table.add_row(Text(e.what), str(e.settings), *cells)
    about = predictions[0].outcome["calibrated_on"]
    return Group(Text(f"{len(predictions)} settings, predicted from {about.get('place', 'a profile')}"), table)
