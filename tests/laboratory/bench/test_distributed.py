"""Ranks under DDP train exactly as virtual workers do, and a network's records tell measured seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import TRAIN, narrow, shrink, train_small

from gradwire.core import environment, records
from gradwire.core.baselines import HALF, PLAIN
from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench import distributed, virtual
from gradwire.laboratory.bench.distributed import NetworkStudy
from gradwire.laboratory.bench.launch import launch
from gradwire.laboratory.bench.sweep import LOOPBACK, Place
from gradwire.laboratory.bench.tasks.drawn import ShapeData
from gradwire.laboratory.bench.training import Plan, open_data
from gradwire.planner.clock import Measured
from gradwire.planner.training import Run
from gradwire.tracing import trace

pytestmark = pytest.mark.dist

BASE = Plan(task="shapes", codec="none", workers=2, batch=5, epochs=4, nmse_every=50)
# rank 1 is left to other tests: products of a matrix and a vector round otherwise where several workers' are one call
ACCORDION = "accordion(low='powersgd(rank=4)', high='powersgd(rank=2)', every=1, decay=0.5)"
LARGER = "accordion_batch(codec='none', factor=2, eta=2.0, every=1, decay=0.5)"
PAIRS = {
    "none": BASE,
    "topk": replace(BASE, codec="topk(ratio=0.01)"),
    "efsignsgd": replace(BASE, codec="efsignsgd"),
    "powersgd": replace(BASE, codec="powersgd(rank=2)"),
    "qsgd": replace(BASE, codec="qsgd"),
    "dgc": replace(BASE, codec="dgc(ratio=0.01)", momentum=0.0),
    "accordion": replace(BASE, codec=None, controller=ACCORDION),
}
FEW = replace(BASE, batch=20, epochs=1)  # 12 steps
SHORT = {
    "a larger batch": replace(FEW, codec=None, controller=LARGER, epochs=4),
    "an error that follows the rate": replace(FEW, codec="topk", memory="error_feedback(by_learning_rate=True)"),
    "steps that lean on the last": replace(FEW, codec="efsignsgd", compress="all", evaluate_every=5),
    "divergence": replace(FEW, learning_rate=1e9, epochs=4),
    "patience": replace(FEW, learning_rate=0.0, epochs=4, patience=1),
}
FOURS = {name: replace(PAIRS[name], workers=4, epochs=1) for name in ("none", "powersgd")}
NORMALISED = Plan(task="resnet20-cifar10", codec="efsignsgd", workers=2, batch=4, epochs=1, synthetic=True)


class Leaning(ShapeData):
    """Images over the mean image of the worker's last batch."""

    def carry(self, batch):
        return (torch.zeros(1, 32, 32),)

    def loss(self, model, batch, carry):
        images, labels = batch
        loss, _ = super().loss(model, (images + carry[0], labels), ())
        return loss, (images.mean(0),)


def data_of(name, plan, kept):
    if name == "steps that lean on the last":
        return Leaning(torch.device("cpu"))
    if plan.task not in kept:
        data = kept[plan.task] = open_data(plan)
        if plan.task == NORMALISED.task:
            data.labels = data.labels[:24]  # three steps
            data.test, data.test_labels = data.test[:8], data.test_labels[:8]
    return kept[plan.task]


def result(trainer):
    """All that a run comes to, parameters and statistics included."""
    trainer.run()
    state = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    return state, trainer.history, trainer.outcome()


def train_all(rank, plans):
    shrink()
    kept = {}
    return {
        name: result(distributed.Trainer(plan, data_of(name, plan, kept), rank.rank, "a clock"))
        for name, plan in plans.items()
    }


def train_virtually(rank, plans):
    """In a process like those of ranks: with other threads, or after other work, sums might round otherwise."""
    shrink()
    kept = {}
    return {name: result(virtual.Trainer(plan, data=data_of(name, plan, kept))) for name, plan in plans.items()}


def both(plans, workers=2):
    """By virtual workers, and by each of the ranks."""
    [alone] = launch(train_virtually, 1, (plans,), timeout=140)
    return alone, launch(train_all, workers, (plans,), timeout=140)


def near(one, other):
    """Means over workers are added up in another order."""
    assert [a is None for a in one] == [b is None for b in other]
    known = [(a, b) for a, b in zip(one, other, strict=True) if a is not None]
    assert [a for a, _ in known] == pytest.approx([b for _, b in known], rel=1e-5)


def check(run, ours, ranks):
    state, history, outcome = ours
    for theirs, other, told in ranks:
        assert list(theirs) == list(state)
        for name, tensor in state.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=0, atol=0, equal_nan=True, msg=f"{run}: {name}")
        for name in ("rounds", "epochs", "quality", "levels", "learning_rates", "batch_sizes"):
            assert getattr(other, name) == getattr(history, name), (run, name)
        assert (other.payload_bytes, other.sent_bytes) == (history.payload_bytes, history.sent_bytes)
        assert other.nmse == history.nmse
        assert (other.diverged, other.stopped_early) == (history.diverged, history.stopped_early)
        near(other.train_loss, history.train_loss)
        near(other.residual_norm, history.residual_norm)
        assert (told["switches"], told["skipped_steps"]) == (outcome["switches"], outcome["skipped_steps"])


def test_hundreds_of_steps_of_two_ranks_are_those_of_virtual_workers_bit_for_bit():
    alone, ranks = both(PAIRS)
    for name in PAIRS:
        check(name, alone[name], [rank[name] for rank in ranks])
        _, history, _ = alone[name]
        assert history.rounds[-1] == 4 * (TRAIN // 10) > 200
        assert history.quality[-1] > max(20, history.quality[0])
        assert None not in history.nmse
    _, history, outcome = alone["accordion"]
    assert {level for levels in history.levels for level in levels} == {"powersgd", "powersgd(rank=2)"}
    assert 0 < min(switch["epoch"] for switch in outcome["switches"]) < 3  # in the middle


def test_so_are_runs_of_other_kinds():
    alone, ranks = both({**SHORT, "resnet20": NORMALISED})
    for name in SHORT:
        check(name, alone[name], [rank[name] for rank in ranks])
    histories = {name: history for name, (_, history, _) in alone.items()}
    assert set(histories["a larger batch"].batch_sizes) == {40, 80}
    assert histories["steps that lean on the last"].rounds == [5, 10, 12]
    diverged = histories["divergence"]
    assert (diverged.diverged, diverged.rounds, diverged.train_loss) == (True, [12], [None])
    assert histories["patience"].stopped_early
    assert len(histories["patience"].rounds) == 2

    check("resnet20", alone["resnet20"], [ranks[0]["resnet20"]])
    ours, other = alone["resnet20"][0], ranks[1]["resnet20"][0]
    assert {int(t) for name, t in ours.items() if name.endswith("num_batches_tracked")} == {3}
    # rank 1 has its own statistics of the last step, until the next one begins
    assert all(torch.equal(other[n], t) for n, t in ours.items() if "running" not in n)
    assert not all(torch.equal(other[n], t) for n, t in ours.items())


def test_four_ranks_differ_by_the_order_of_their_sums_alone():
    alone, ranks = both(FOURS, 4)
    for name in FOURS:
        state, history, _ = alone[name]
        assert history.rounds == [TRAIN // 20]
        for rank in ranks:
            theirs, other, _ = rank[name]
            assert all(torch.allclose(theirs[n], t, rtol=1e-3, atol=1e-5) for n, t in state.items()), name
            assert (other.payload_bytes, other.sent_bytes) == (history.payload_bytes, history.sent_bytes)


# -------------------------------------------------------------------- records


def a_study(**changes):
    plan = replace(BASE, codec="fp16", batch=64, nmse_every=0)
    values = {"plans": (plan,), "command": "gradwire bench accuracy", "hosts": 2, "rate": LOOPBACK} | changes
    return NetworkStudy(**values)


def test_the_record_of_a_network(tmp_path, monkeypatch):
    shrink(monkeypatch.setattr)
    monkeypatch.setattr(distributed, "train", train_small)
    path, started, seen = tmp_path / "r.jsonl", [], []
    study = a_study()
    (record,) = study.run(path, lambda plan, runs: started.append(runs), lambda plan, h: seen.append(h.rounds[-1]))
    assert (started, seen) == ([True], [4, 8, 12, 16])
    assert records.load(path) == [record]
    what = replace(study.plans[0], compress="all").what("synthetic: drawn shapes")  # as torch's hook sends it
    assert record.what == {"hosts": 2, "ranks_per_host": 1, "bits_per_second": None} | what
    assert record.environment["backend"] == "gloo over loopback"
    outcome, quality = record.outcome, record.samples
    assert (outcome["exchange"], outcome["network"], outcome["nmse"]) == (HALF, {}, [None] * 4)
    assert (outcome["best"], outcome["final"]) == (max(quality), quality[-1])
    tensors = [(n, tuple(p.shape)) for n, p in narrow(0).named_parameters()]
    sent = trace("fp16", tensors, workers=2, tensors="all")
    assert outcome["payload_bytes"] == [r * sent.payload_bytes for r in outcome["rounds"]]
    assert outcome["sent_bytes"] == [r * sent.sent_bytes for r in outcome["rounds"]]
    assert 0 < outcome["seconds"][0] < outcome["seconds"][1] < outcome["seconds"][3]
    assert Measured.of([Run.of(record)]).label == "measured: 2 ranks over loopback"

    assert list(study.run(path, lambda plan, runs: started.append(runs))) == [record]
    assert started == [True, False]


def test_baselines_are_torchs_own():
    assert distributed.baseline(BASE) == PLAIN
    assert distributed.baseline(replace(BASE, codec="fp16", memory="none")) == HALF
    for other in (
        replace(BASE, codec="bf16"),
        replace(BASE, codec="fp16", memory="error_feedback"),
        replace(BASE, strategy="all_gather"),
        SHORT["a larger batch"],
    ):
        assert distributed.baseline(other) is None


def test_a_clock_tells_its_place():
    assert distributed.clock(Place(4, 1, "200mbit", None, {})) == "measured: 4 hosts at 200 Mbit/s"
    assert distributed.clock(Place(2, 4, "1gbit", None, {})) == "measured: 2 hosts with 4 ranks each at 1 Gbit/s"
    assert distributed.clock(Place(2, 1, LOOPBACK, None, {})) == "measured: 2 ranks over loopback"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hosts": 1}, "bench accuracy: `hosts` must be a whole number of at least 2, got 1"),
        (
            {"hosts": 3},
            "bench accuracy: 2 ranks on cpu cannot be placed on 3 hosts, as many on each, with gloo between them; "
            "choose --hosts and --workers, and leave --device away",
        ),
        (
            {"plans": (BASE,)},
            "bench accuracy: measuring the error sends the whole gradient, which would count as training time; leave "
            "--nmse-every away on a network, the error is the same on virtual workers",
        ),
    ],
)
def test_what_a_network_cannot_do_is_refused_at_once(changes, message):
    with pytest.raises(ConfigError) as caught:
        a_study(**changes)
    assert str(caught.value) == message
    with pytest.raises(ConfigError, match="fast"):
        a_study(rate="fast")


def test_a_run_of_another_commit_is_made_again(monkeypatch, tmp_path):
    shrink(monkeypatch.setattr)
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr(environment, "commit", lambda: ("aaaa", False))
    launched = []

    def fake(function, workers, arguments, *args, **options):
        plan, _, clock = arguments
        launched.append(plan.codec)
        history = distributed.History()
        history.add(quality=50.0)
        return [(history, {"metric": "top-1 accuracy", "clock": clock})] * workers

    monkeypatch.setattr(distributed, "launch", fake)
    list(a_study().run(path))
    monkeypatch.setattr(environment, "commit", lambda: ("bbbb", False))
    (record,) = a_study().run(path)
    assert (launched, record.commit) == (["fp16", "fp16"], "bbbb")
    list(a_study().run(path))
    assert len(launched) == 2
