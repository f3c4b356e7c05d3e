"""Trackers: what was logged is there. TensorBoard for real, the others against the calls that their packages take."""

from __future__ import annotations

import math
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.adaptive import Accordion
from gradwire.core.errors import ConfigError, MissingExtra, UnknownName
from gradwire.trackers import NoTracker, handle_values, level_values, open_tracker

RUN = [
    (98, {"quality": 50.5, "sent_bytes": 1 << 40, "residual_norm/layer1.0.conv1.weight": 0.25}),
    (196, {"quality": torch.tensor(61.25), "nmse": math.nan}),
]
CONFIG = {"codec": "topk(ratio=0.01)", "learning_rate": 0.1, "controller": None, "milestones": (12, 20)}


def train(spec):
    with open_tracker(spec) as tracker:
        tracker.config(CONFIG)
        for step, values in RUN:
            tracker.log(step, values)
    tracker.close()  # once more does no harm


def crash(spec):
    def training():
        with open_tracker(spec) as tracker:
            tracker.log(*RUN[0])
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        training()


# ---------------------------------------------------------------- TensorBoard


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    train(f"tensorboard:{tmp_path / 'runs' / 'topk'}")
    events = EventAccumulator(str(tmp_path / "runs" / "topk")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("quality")] == [(98, 50.5), (196, 61.25)]
    assert [(e.step, e.value) for e in events.Scalars("sent_bytes")] == [(98, float(1 << 40))]
    assert [(e.step, e.value) for e in events.Scalars("residual_norm/layer1.0.conv1.weight")] == [(98, 0.25)]
    assert math.isnan(events.Scalars("nmse")[0].value)
    (config,) = events.Tensors("config/text_summary")
    text = config.tensor_proto.string_val[0].decode()
    assert '"codec": "topk(ratio=0.01)"' in text
    assert '"milestones"' in text


def test_tensorboard_keeps_what_a_crashed_run_had_logged(tmp_path):
    crash(f"tensorboard:{tmp_path}")
    assert [e.step for e in EventAccumulator(str(tmp_path)).Reload().Scalars("quality")] == [98]


# ---------------------------------------------------------------- Weights & Biases


class FakeRun:
    """Refuses what the real one refuses or drops: tensors, a step of its own that goes back, anything after the end."""

    def __init__(self, project):
        self.project, self.history, self.settings, self.exit_code = project, [], {}, None
        self.config = SimpleNamespace(update=self.settings.update)
        self.axes, self.step = {}, 0

    def define_metric(self, name, step_metric):
        self.axes[name] = step_metric

    def log(self, data, step=None):
        assert self.exit_code is None
        assert all(type(v) in (int, float) for v in data.values())
        if step is not None and step < self.step:
            return
        self.step = self.step + 1 if step is None else step
        self.history.append(data)

    def finish(self, exit_code):
        assert self.exit_code is None, "finished twice"
        self.exit_code = exit_code


@pytest.fixture
def wandb_runs(monkeypatch):
    runs = []
    module = ModuleType("wandb")

    def init(*, project):
        runs.append(FakeRun(project))
        return runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return runs


def test_wandb_gets_a_run_of_the_project(wandb_runs):
    train("wandb:gradients")
    (run,) = wandb_runs
    assert (run.project, run.exit_code, run.settings) == ("gradients", 0, CONFIG)
    assert run.axes == {"*": "step"}
    assert [data["step"] for data in run.history] == [98, 196]
    assert run.history[0] == {"step": 98, **RUN[0][1]}
    assert run.history[1]["quality"] == 61.25


def test_wandb_keeps_a_second_training_that_begins_at_0_again(wandb_runs):
    with open_tracker("wandb:gradients") as tracker:
        for codec in ("none", "topk"):
            for step in (98, 196):
                tracker.log(step, {f"{codec}/quality": float(step)})
    (run,) = wandb_runs
    assert [data["step"] for data in run.history] == [98, 196, 98, 196]


def test_wandb_marks_a_failed_run(wandb_runs):
    crash("wandb:gradients")
    assert wandb_runs[0].exit_code == 1


# ---------------------------------------------------------------- MLflow


class FakeClient:
    """Two tables, and the limits of the real service."""

    experiments: dict[str, str]
    runs: dict[str, dict]

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name):
        assert name not in self.experiments
        self.experiments[name] = str(len(self.experiments))
        return self.experiments[name]

    def create_run(self, experiment_id):
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {"experiment": experiment_id, "metrics": [], "params": {}, "status": "RUNNING"}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id, metrics=(), params=()):
        run = self.runs[run_id]
        assert run["status"] == "RUNNING"
        assert len(metrics) <= 1000
        assert len(params) <= 100
        assert all(re.fullmatch(r"[/\w.\- :]+", one.key) for one in (*metrics, *params))
        assert all(type(m.value) is float and type(m.timestamp) is int for m in metrics)
        assert all(type(p.value) is str for p in params)
        run["metrics"] += [(m.key, m.step, m.value) for m in metrics]
        run["params"] |= {p.key: p.value for p in params}

    def set_terminated(self, run_id, status):
        assert self.runs[run_id]["status"] == "RUNNING", "terminated twice"
        self.runs[run_id]["status"] = status


@pytest.fixture
def mlflow_client(monkeypatch):
    client = type("Client", (FakeClient,), {"experiments": {}, "runs": {}})
    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = client
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(
        key=key, value=value, timestamp=timestamp, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return client


def test_mlflow_gets_a_run_of_the_experiment(mlflow_client):
    train("mlflow:gradients")
    train("mlflow:gradients")
    assert mlflow_client.experiments == {"gradients": "0"}
    first, second = mlflow_client.runs.values()
    assert first["experiment"] == second["experiment"] == "0"
    assert first["status"] == "FINISHED"
    assert first["params"] == {name: str(value) for name, value in CONFIG.items()}
    assert ("quality", 98, 50.5) in first["metrics"]
    assert ("quality", 196, 61.25) in first["metrics"]
    assert len(first["metrics"]) == 5


def test_mlflow_marks_a_failed_run(mlflow_client):
    crash("mlflow:gradients")
    assert mlflow_client.runs["run0"]["status"] == "FAILED"


def test_mlflow_takes_many_values_and_odd_names(mlflow_client):
    with open_tracker("mlflow:gradients") as tracker:
        tracker.config({f"p{i}": i for i in range(250)})
        tracker.log(1, {f"level/p{i}": 0.0 for i in range(2500)} | {"levels/topk(ratio=0.01)": 3.0})
    run = mlflow_client.runs["run0"]
    assert (len(run["params"]), len(run["metrics"])) == (250, 2501)
    assert run["metrics"][-1] == ("levels/topk_ratio_0.01_", 1, 3.0)


# ---------------------------------------------------------------- specs


def test_no_tracker_takes_everything():
    train("none")
    crash("none")
    assert isinstance(open_tracker("none"), NoTracker)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("tensorbord:runs", UnknownName, "no tracker named 'tensorbord'; did you mean tensorboard?"),
        ("", UnknownName, "known: mlflow, none, tensorboard, wandb"),
        ("tensorboard", ConfigError, "needs a folder, got 'tensorboard'; write tensorboard:FOLDER"),
        ("wandb: ", ConfigError, "needs a project"),
        ("mlflow:", ConfigError, "needs an experiment, got .mlflow:.; write mlflow:EXPERIMENT"),
    ],
)
def test_specs_that_cannot_be_read_are_explained(spec, error, message):
    with pytest.raises(error, match=message):
        open_tracker(spec)


@pytest.mark.parametrize(
    ("kind", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_missing_package_comes_with_the_command_that_installs_it(kind, module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"tracker '{kind}'.*pip install {kind}"):
        open_tracker(f"{kind}:{tmp_path}")


# ---------------------------------------------------------------- what a handle tells


def test_statistics_of_a_handle_become_scalars():
    stats = {
        "codec": "topk(ratio=0.01)",
        "workers": 4,
        "steps": 7,
        "skipped_steps": 1,
        "sent_bytes": 1000,
        "encode_seconds": None,
        "residual_norm": 2.5,
        "residual_norms": {"conv1.weight": 1.5, "residual_norms/odd": 2.0},
        "nmse": None,
        "link": {"latency": 1e-4, "name": "eth0"},
        "levels": {"powersgd(rank=4)": 3},
        "switches": [{"epoch": 1}],
        "overlapped": True,
    }
    values = handle_values(SimpleNamespace(stats=lambda: stats))
    assert values == {
        "skipped_steps": 1.0,
        "sent_bytes": 1000.0,
        "residual_norm/total": 2.5,
        "residual_norm/conv1.weight": 1.5,
        "residual_norm/residual_norms/odd": 2.0,
        "link/latency": 1e-4,
        "levels/powersgd(rank=4)": 3.0,
    }
    assert all(type(v) is float for v in values.values())


@pytest.mark.filterwarnings("ignore:.*has one rank, so there is nothing to send")
def test_a_real_handle_is_tracked_while_it_trains(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        handle = gradwire.attach(model, "topk(ratio=0.5)")
        with open_tracker(f"tensorboard:{tmp_path}") as tracker:
            for step in range(3):
                loss = model(torch.ones(1, 4)).sum()
                loss.backward()
                tracker.log(step, {"train_loss": loss.item()} | handle_values(handle))
    finally:
        dist.destroy_process_group()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {"train_loss", "sent_bytes", "payload_bytes", "skipped_steps"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("sent_bytes")] == [0, 1, 2]


def test_levels_become_places_in_a_controllers_order():
    accordion = Accordion(low="powersgd(rank=4)", high="powersgd(rank=1)")
    _, decision = accordion.first(["a", "b"])
    levels = {**decision.settings.levels, "b": "powersgd(rank=1)"}
    assert level_values(levels, accordion.levels) == {"level/a": 0.0, "level/b": 1.0}
