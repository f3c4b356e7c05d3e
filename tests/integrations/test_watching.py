"""`handle.watch`: numbers that rank 0 tells are right, whoever takes them, and change nothing."""

from __future__ import annotations

import json
import logging
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from given import agree, batch, message, network, same, train, weights
from ranks import Pool
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.core.moments import Exchanged, moment
from gradwire.core.records import load
from gradwire.integrations.monitor import WARM_UP, Monitor, Progress
from gradwire.integrations.ways import DDP
from gradwire.integrations.window import Window
from gradwire.tracing import trace
from gradwire.trackers import open_tracker
from stream_events import StreamEvent

STEPS, EVERY = 21, 10
SHAPES = [(n, tuple(p.shape)) for n, p in network().named_parameters()]


class Lines(logging.Handler):
    """What the library logs."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def __enter__(self) -> list[str]:
        self.logger = logging.getLogger("gradwire")
        self.level_before = self.logger.level
        self.logger.setLevel(logging.INFO)
        self.logger.addHandler(self)
        return self.told

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(self.level_before)


def wrapped() -> DistributedDataParallel:
    return DistributedDataParallel(network(), bucket_cap_mb=0.01)


def watched(rank: int, codec: str | None, watch: dict | None, options: dict[str, Any], steps: int = STEPS) -> tuple:
    """Train; what was logged, what a function was told, and the weights."""
    model, told = wrapped(), {}
    with Lines() as lines:
        handle = gradwire.attach(model, codec, **options)
        if watch is not None:
            handle.watch(EVERY, tracker=lambda step, values: told.update({step: values}), **watch)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(steps))
        shown, stats = repr(handle), handle.stats()
        handle.detach()
    return lines, told, weights(model), stats, shown


@pytest.mark.dist
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("eightbit", {"tensors": "all"}),
        ("topk(ratio=0.1)", {"mode": "after_backward", "check": 5}),
        (None, {}),
        ("none", {}),
    ],
    ids=["overlap", "after backward, checked", "autopilot", "none"],
)
def test_watching_changes_no_bit_and_only_rank_0_tells(pool: Pool, codec: str | None, options: dict) -> None:
    plain = pool.run(2, watched, codec, None, options)
    found = pool.run(2, watched, codec, {}, options)
    if codec is not None:  # the autopilot chooses by time
        assert same(found[0][2], plain[0][2])
    assert agree([weights for _, _, weights, _, _ in found])
    lines, told = found[0][:2]
    assert sorted(told) == [10, 20]
    assert [line.partition(":")[0] for line in lines if " step " in line] == ["gradwire step 10", "gradwire step 20"]
    assert not any(" step 10" in line for line in found[1][0])
    assert found[1][1] == {}


@pytest.mark.dist
def test_numbers_are_those_of_the_run(pool: Pool) -> None:
    found = pool.run(2, watched, "eightbit", {}, {"tensors": "all"})
    lines, told, _, stats, shown = found[0]
    values = told[20]
    assert values["gradwire/sent_bytes_per_step"] == stats["sent_bytes_per_step"]
    plain = trace("none", SHAPES, workers=2, tensors="all").sent_bytes
    assert values["gradwire/compression_ratio"] == pytest.approx(plain / stats["sent_bytes_per_step"])
    assert 0 < values["gradwire/residual_norm"] < 1
    assert values["gradwire/step_seconds"] > values["gradwire/exposed_seconds"] > 0
    assert values["gradwire/hidden_seconds"] >= 0
    assert "gradwire/nmse" not in values
    assert "; exchange " in lines[-1]
    assert " hidden, " in lines[-1]
    assert "times less than plain DDP; a step takes " in lines[-1]
    assert shown.splitlines()[0] == "gradwire.Handle: eightbit, memory error_feedback, strategy auto, mode overlap"
    assert shown.splitlines()[1].startswith("  2 ranks, 21 steps; 8 tensors of 5,306 elements, in ")
    assert "times less than plain DDP" in shown.splitlines()[2]


def accumulate(rank: int) -> tuple[list[int], list[float]]:
    """Two micro-batches a step, of which the first is not exchanged."""
    model, told = wrapped(), {}
    handle = gradwire.attach(model, "eightbit")
    handle.watch(EVERY, log=False, tracker=lambda step, values: told.update({step: values}))
    for step in range(STEPS):
        for micro in range(2):
            x, y = batch(rank, 2 * step + micro)
            with model.no_sync() if micro == 0 else nullcontext():
                nn.functional.cross_entropy(model(x), y).backward()
    return sorted(told), [v["gradwire/sent_bytes_per_step"] for v in told.values()]


@pytest.mark.dist
def test_accumulated_micro_batches_are_one_step(pool: Pool) -> None:
    steps, sent = pool.run(2, accumulate)[0]
    assert steps == [10, 20]
    assert sent[0] == sent[1] == trace("eightbit", SHAPES, workers=2).sent_bytes


def resume(rank: int) -> list[int]:
    model = wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = gradwire.attach(model, "eightbit")
    train(model, optimizer, range(7))
    state = handle.state_dict()
    handle.detach()
    told: dict[int, Any] = {}
    again = gradwire.attach(model, "eightbit")
    again.watch(EVERY, log=False, tracker=lambda step, values: told.update({step: values}))
    again.load_state_dict(state)
    train(model, optimizer, range(7, 31))
    return sorted(told)


@pytest.mark.dist
def test_a_resumed_run_goes_on_counting(pool: Pool) -> None:
    assert pool.run(2, resume)[0] == [20, 30]  # at 10 steps, those since the restart are still warming up


def write(rank: int, folder: str, spec: str) -> dict:
    model = wrapped()
    handle = gradwire.attach(model, "eightbit")
    about = {"batch": 8, "network": "10gbit", "hosts": 2, "learning_rate": 0.1}
    handle.watch(EVERY, log=False, tracker=spec, record=Path(folder, "run.jsonl"), about=about)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(STEPS + 3))
    handle.detach()  # closes the tracker, and tells what is left
    return handle.stats()


@pytest.mark.dist
def test_tensorboard_and_a_record_hold_the_same(pool: Pool, tmp_path: Path) -> None:
    stats = pool.run(2, write, str(tmp_path), f"tensorboard:{tmp_path / 'board'}")[0]
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    found = load(tmp_path / "run.jsonl")
    assert [r.outcome["step"] for r in found] == [10, 20, 23]
    assert [e.step for e in events.Scalars("gradwire/step_seconds")] == [10, 20, 23]
    for name, key in (("sent_bytes_per_step", "sent_bytes"), ("exposed_seconds", "exposed_seconds")):
        board = [e.value for e in events.Scalars(f"gradwire/{name}")]
        assert board == pytest.approx([r.outcome[key] for r in found])
    first = found[0]
    assert first.outcome["sent_bytes"] == stats["sent_bytes_per_step"]
    assert len(first.samples) == 10 - WARM_UP
    assert set(first.outcome["parts_seconds"]) == {"encode", "communicate", "decode"}
    what = {"model": "Sequential", "batch": 8, "hosts": 2, "ranks_per_host": 1, "bits_per_second": 1e10}
    what |= {"learning_rate": 0.1, "configuration": "eightbit", "memory": "error_feedback", "strategy": "auto"}
    assert first.what == {**what, "mode": "overlap", "tensors": "matrices", "workers": 2, "elements": 5306}
    assert first.environment["backend"] == "gloo"
    assert str(tmp_path) not in first.to_json()
    (config,) = events.Tensors("config/text_summary")
    assert '"configuration": "eightbit"' in config.tensor_proto.string_val[0].decode()


def fail_to_tell(rank: int) -> tuple[list[str], int, Tensor]:
    def full(step: int, values: object) -> None:
        raise OSError("no space left")

    model = wrapped()
    with Lines() as lines:
        handle = gradwire.attach(model, "eightbit")
        handle.watch(EVERY, log=False, tracker=full)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(STEPS))
    return lines, handle.stats()["steps"], weights(model)


@pytest.mark.dist
def test_what_goes_wrong_with_watching_does_not_end_the_training(pool: Pool) -> None:
    found = pool.run(2, fail_to_tell)
    assert agree([weights for _, _, weights in found])
    lines, steps, _ = found[0]
    assert steps == STEPS
    assert lines == [
        "gradwire: this training goes on, but is not watched any more: OSError('no space left')",
    ]


def refuse(rank: int, folder: str) -> list[str]:
    model = wrapped()
    handle = gradwire.attach(model, "eightbit")
    cases: list[dict] = [
        {"every": 0},
        {"tracker": "tensorbord:runs"},
        {"tracker": 7},
        {"record": f"{folder}/run.csv"},
        {"record": f"{folder}/nowhere/run.jsonl"},
        {"about": {"hosts": 3}},
        {"about": {"network": "fast"}},
        {"about": {"loss": torch.nn.MSELoss}},
    ]
    told = [message(gradwire.GradwireError, handle.watch, log=False, **case) for case in cases]
    handle.detach()
    return [*told, message(gradwire.Incompatible, handle.watch)]


@pytest.mark.dist
def test_bad_requests_get_a_sentence(pool: Pool, tmp_path: Path) -> None:
    told = [text.replace(str(tmp_path), "FOLDER") for text in pool.run(2, refuse_on_first, str(tmp_path))[0]]
    assert told == [
        "watch: `every` must be a whole number of at least 1, got 0",
        "no tracker named 'tensorbord'; did you mean tensorboard?",
        "watch: `tracker` must be a spec such as 'tensorboard:FOLDER', a gradwire tracker, or a function of step and "
        "values, got int. For a run that you have open, pass a function: "
        "lambda step, values: run.log(values, step=step)",
        "watch: records are lines of JSON, so `record` must end in .jsonl, got 'FOLDER/run.csv'",
        "watch: there is no folder 'FOLDER/nowhere' for the record; make it first",
        "watch: `hosts` must be a number of hosts that 2 ranks fill evenly, got 3",
        "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got 'fast'",
        "watch: `about` goes into records, so it must be ready for JSON: Object of type type is not JSON serializable",
        "watch: this handle is not attached any more; attach again, and watch with that handle",
    ]


def refuse_on_first(rank: int, folder: str) -> list[str]:
    return refuse(rank, folder) if rank == 0 else (gradwire.attach(wrapped(), "eightbit"), [])[1]


def hint(rank: int) -> list[str]:
    model = wrapped()
    with Lines() as lines:
        logging.getLogger("gradwire").setLevel(logging.WARNING)
        gradwire.attach(model, "eightbit").watch()
    return lines


@pytest.mark.dist
def test_a_log_that_shows_nothing_is_told_once(pool: Pool) -> None:
    assert pool.run(2, hint) == [
        [
            "gradwire: lines about steps have level INFO, which nothing shows yet; before: "
            "logging.basicConfig(level=logging.INFO)"
        ],
        [],
    ]


def test_a_window_in_words_and_as_curves() -> None:
    window = Window(
        step=300,
        codec="topk",
        seconds=(0.02, 0.03, 0.04),
        sent_bytes=1e6,
        plain_bytes=4e7,
        hidden=0.004,
        exposed=0.001,
        residual_norm=math.inf,
    )
    assert window.sentence == (
        "step 300: topk sends 1 MB a step, 40 times less than plain DDP; a step takes 30 ms; exchange 4 ms hidden, "
        "1 ms exposed; memory norm inf"
    )
    with open_tracker("none") as tracker:
        tracker.log(window.step, window.values)
    assert json.loads(json.dumps(window.values))["gradwire/compression_ratio"] == 40.0
    alone = Window(step=1, codec="topk", seconds=(0.02,), sent_bytes=0.0, plain_bytes=0.0)
    assert alone.sentence == "step 1: topk sends nothing; a step takes 20 ms"
    assert "gradwire/compression_ratio" not in alone.values


def test_on_a_gpu_nobody_waits_and_late_moments_count_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is two steps behind the host."""
    StreamEvent.reset()
    monkeypatch.setattr(torch.cuda, "Event", StreamEvent)
    device, told = torch.device("cuda"), list[Window]()
    steps = 0

    def progress() -> Progress:
        marks = [moment(device) for _ in range(3)]
        return Progress(steps, 100.0 * steps, None, Exchanged(*marks))

    stats = {"codec": "topk", "residual_norm": None, "nmse": None, "skipped_steps": 0}
    monitor = Monitor(progress, lambda: stats, 10, [told.append], [], device, 2, DDP, judges=True)
    for steps in range(21):
        StreamEvent.launched, StreamEvent.done = 20.0 * steps, 20.0 * (steps - 2)
        monitor.on_gradient(torch.zeros(1000), first=True)
    assert StreamEvent.waits == 0
    assert [(w.step, len(w.seconds)) for w in told] == [(10, 10 - WARM_UP - 2), (20, 10)]
    assert set(told[1].seconds) == {0.02}
    assert (told[1].sent_bytes, told[1].plain_bytes, told[1].parts) == (100.0, 4000.0, None)
    assert (told[1].hidden, told[1].exposed) == (0.0, 0.0)
    assert not monitor._timed
