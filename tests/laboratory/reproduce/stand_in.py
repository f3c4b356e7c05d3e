"""A model that answers as the formula does, so that tests of the study need no traces; and records made up."""

from __future__ import annotations

from types import SimpleNamespace

from gradwire.core.records import Quantiles, Record
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.inputs import m_set, s_set
from gradwire.laboratory.reproduce.setup import Setup
from gradwire.laboratory.reproduce.study import Study
from gradwire.planner.profile import Profile

ENCODING = "v100-paper-simulated"  # any profile with laws of the grid's codecs will do


def stand_in(**question):
    """Sequential compression; overlapped, a tenth faster. Memory and decoding grow with the GPUs."""
    assert isinstance(question["hardware"], Profile)
    formula = Formula(s_set() if question["hardware"].name.startswith("v100-paper-simulated") else m_set())
    names = ("model", "batch", "gpus", "compute_speed", "encode_speed", "ratio")
    setup = Setup(**{n: question[n] for n in names}, bits_per_second=question["bandwidth"], face_value=True)
    seconds = formula.seconds(setup, question["codec"])
    overlapped = question["mode"] == "overlap" and question["codec"] not in ("none", "fp16")
    return SimpleNamespace(
        sync_seconds=0.9 * seconds if overlapped else seconds,
        parts={"exchange": 0.1, "decode": 1e-3 * question["gpus"]},
        memory_bytes=1e6 * question["gpus"],
        sent_bytes=1.0,
    )


def study(records=()):
    return Study(records=records, predict=stand_in, encoding=ENCODING)


def record(kind, what, seconds, outcome, time="2026-01-01T00:00:00+00:00", command="made up"):
    return Record(
        kind=kind,
        what=what,
        command=command,
        time=time,
        commit="none",
        dirty=False,
        environment={},
        unit="seconds",
        quantiles=Quantiles(p20=seconds, p50=seconds, p80=seconds),
        samples=(seconds,),
        outcome=outcome,
    )
