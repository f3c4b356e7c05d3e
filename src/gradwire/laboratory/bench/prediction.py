"""Predicted against measured: what a calibrated profile says of settings that it has not seen.

One record a setting, of kind "prediction": its `what` is that of the measured one, its sample the predicted seconds.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gradwire.core import environment
from gradwire.core.baselines import CODEC_OF
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.records import Quantiles, Record
from gradwire.core.registry import to_spec
from gradwire.core.training_records import pooled, trainings
from gradwire.laboratory.bench.collective import WIDTH
from gradwire.laboratory.bench.step import OWN, build, example
from gradwire.planner import calibrate
from gradwire.planner import own_workloads as workloads
from gradwire.planner.calibrate import STEP, Place
from gradwire.planner.profile import Profile
from gradwire.planner.workload import OVERLAP, ModelShape, Traces, Workload

KIND = "prediction"


def workload_of(what: Mapping[str, Any]) -> Workload:
    """What the setting of a step or collective record exchanges, traced for just that number of workers."""
    workers = what["hosts"] * what["ranks_per_host"]
    if "configuration" in what:
        label = what["configuration"]
        model, codec, mode = what["model"], CODEC_OF.get(label, label), what.get("mode", OVERLAP)
        return _workload(model, to_spec(codecs.build(codec)), what.get("strategy", "auto"), mode, workers)
    elements = what["elements"]
    matrix = (-(-elements // WIDTH), min(elements, WIDTH))
    return _workload(matrix, to_spec(codecs.build(what["codec"])), what["strategy"], "after_backward", workers)


@cache
def _workload(subject: str | tuple[int, int], codec: str, strategy: str, mode: str, workers: int) -> Workload:
    shape = ModelShape("matrix", (subject,), (1.0,)) if isinstance(subject, tuple) else _shape(subject)
    traces = Traces(workloads.content(shape, codec, [strategy], (workers,)))
    return traces.workload(shape.name, codec, strategy, mode, workers)


@cache
def _shape(model: str) -> ModelShape:
    if model != OWN:
        return workloads.model_shape(model)
    module = build(model)
    inputs = tuple(t.to("meta") for t in example(model, module, 2))
    return workloads.shape(model, module.to("meta"), inputs)


def untold(training: Record, profile: Profile) -> list[str]:
    """What a prediction needs, and the record of a user's training does not say."""
    wanted = {"batch": "batch", "hosts": "hosts", "bits_per_second": "network"}
    missing = [told for name, told in wanted.items() if training.what.get(name) is None]
    if training.what["model"] not in profile.models:
        missing.append(f"a model that profile {profile.name} knows, in place of {training.what['model']!r}")
    if str(training.what["configuration"]).partition("(")[0] not in codecs.names():
        missing.append(f"one codec for the whole training, in place of {training.what['configuration']!r}")
    return missing


def predict_all(
    records: Sequence[Record],
    profile: Profile,
    calibrated_on: Place | None = None,
    command: str = "gradwire validate",
) -> list[Record]:
    """A prediction for every step record, and every training, that the model is about and the profile has not seen."""
    commit, dirty = environment.commit()
    now, found = environment.now(), []
    trained = [pooled(lines) for lines in trainings(records) if not untold(lines[0], profile)]
    for record in [*(r for r in records if r.kind == STEP), *trained]:
        if not calibrate.modelled(record) or Place.of(record.what) == calibrated_on:
            continue
        if record.what["model"] not in profile.models:
            continue
        workload = workload_of(record.what)
        if profile.cost(workload.codec) is None:
            raise ConfigError(
                f"validate: profile {profile.name} does not know what {workload.codec} costs; calibrate with it: "
                f"gradwire calibrate --model {workload.model} --codec {shlex.quote(workload.codec)} -o FILE"
            )
        predicted = calibrate.predict_record(record, workload, profile)
        seconds, measured = predicted.step_seconds, record.quantiles.p50
        found.append(
            dataclasses.replace(
                record,
                kind=KIND,
                command=command,
                time=now,
                commit=commit,
                dirty=dirty,
                unit="seconds a step, predicted",
                quantiles=Quantiles.of([seconds]),
                samples=(seconds,),
                outcome={
                    "measured_seconds": measured,
                    "measured_time": record.time,
                    "error": seconds / measured - 1,
                    "spread": (record.quantiles.p80 - record.quantiles.p20) / (2 * measured),
                    "parts_seconds": predicted.parts,
                    "profile": profile.name,
                    "calibrated_on": dict(profile.about),
                },
            )
        )
    return found
