"""Controllers under DDP: all ranks switch together, exactly as virtual workers do; saved, scaled, and refused."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from given import SHAPES, agree, gradients, message, network, owed, reduced, same, train, weights, wrap
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.trackers import handle_values

pytestmark = pytest.mark.dist
MODES = ["overlap", "after_backward"]
EPOCHS, STEPS = 5, 2
LOW, HIGH = "topk(ratio=0.1)", "topk(ratio=0.02)"
MATRICES = ("a", "c", "g")  # what is compressed of SHAPES


def accordion(low: str = LOW, high: str = HIGH) -> gradwire.Accordion:
    return gradwire.Accordion(low, high, every=1, eta=0.3)


def optimizer_of(model: DistributedDataParallel, rate: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=rate)


def moving(rank: int, step: int) -> dict[str, Tensor]:
    """Rank 0's gradients are large in some epochs, in others for each matrix; those of the other ranks never are."""
    given = gradients(SHAPES, rank, step)
    for name, epochs in {"a": (1, 2, 4), "c": (2, 3), "g": (4,)}.items():
        given[name] *= 8.0 if rank == 0 and step // STEPS in epochs else 1.0
    return given


# ---------------------------------------------------------------- all ranks alike


def switch(rank: int, mode: str) -> list[dict]:
    """Of each step: the units, the results, what is owed, and the levels that held."""
    model = wrap()
    optimizer = optimizer_of(model)
    handle = gradwire.attach(model, controller=accordion(), optimizer=optimizer, mode=mode, strategy="all_gather")
    seen = []
    for step in range(EPOCHS * STEPS):
        levels = dict(handle.engine.steering.specs)
        out = reduced(model, moving(rank, step))
        units = handle.state_dict()["plan"]
        seen.append({"units": units, "out": out, "owed": owed(handle, SHAPES), "levels": levels})
        if step % STEPS == STEPS - 1:
            handle.end_epoch()
    return [*seen, handle.stats()]


@pytest.mark.parametrize("mode", MODES)
def test_ranks_with_different_data_switch_together_as_virtual_workers_do(pool: Pool, mode: str) -> None:
    results = pool.run(3, switch, mode)
    ends = [result.pop() for result in results]
    assert agree([[(s["levels"], s["out"]) for s in result] for result in results])
    cluster = gradwire.VirtualCluster(3, controller=accordion(), strategy="all_gather", tensors="matrices")
    for step in range(EPOCHS * STEPS):
        given = [moving(r, step) for r in range(3)]
        out = cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=results[0][step]["units"])
        for name in SHAPES:
            torch.testing.assert_close(results[0][step]["out"][name], out[name], rtol=1e-6, atol=1e-6)
            for rank in range(3):
                assert torch.equal(results[rank][step]["owed"][name], cluster.memory(name)[rank])
        if step % STEPS == STEPS - 1:
            cluster.end_epoch(0.1, 0.1)
    short = [[{LOW: "low", HIGH: "high"}[level] for level in s["levels"].values()] for s in results[0][::STEPS]]
    assert short == [
        ["low"] * 3,
        ["low"] * 3,
        ["low", "high", "high"],
        ["high", "low", "high"],
        ["low", "high", "high"],
    ]
    switches = [s.to_json() for s in cluster.switches]
    assert {s["parameter"] for s in switches} == set(MATRICES)
    levels = list(cluster.settings.levels.values())
    for stats in ends:
        assert stats["switches"] == switches
        assert stats["controller"] == f"accordion(low='{LOW}', high='{HIGH}', eta=0.3, every=1)"
        assert stats["levels"] == {level: levels.count(level) for level in levels}


def train_and_decay(rank: int, mode: str) -> tuple[list[Tensor], dict, list[int]]:
    """PowerSGD in a network that trains; the rate falls after the fourth epoch."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4], 0.1)
    controller = gradwire.Accordion(low="powersgd(rank=4)", high="powersgd(rank=1)", every=2, eta=5.0)
    handle = gradwire.attach(model, controller=controller, optimizer=optimizer, mode=mode)
    ends, sent = [], [0]
    for epoch in range(8):
        train(model, optimizer, range(3 * epoch, 3 * epoch + 3))
        sent.append(handle.stats()["payload_bytes"])
        scheduler.step()
        handle.end_epoch()
        ends.append(weights(model))
    return ends, handle.stats(), [after - before for before, after in itertools.pairwise(sent)]


@pytest.mark.parametrize("mode", MODES)
def test_accordion_follows_the_schedulers_rate(pool: Pool, mode: str) -> None:
    results = pool.run(2, train_and_decay, mode)
    assert agree([ends for ends, _, _ in results])
    for _, stats, sent in results:
        assert [(s["epoch"], s["from"], s["to"]) for s in stats["switches"] if s["parameter"] in ("*", "0.weight")] == [
            (2, "powersgd(rank=4)", "powersgd(rank=1)"),  # norms changed by less than fivefold
            (3, "powersgd(rank=1)", "powersgd(rank=4)"),
            (6, "powersgd(rank=4)", "powersgd(rank=1)"),  # the fourth is the first at the lower rate
        ]
        assert [s["why"] for s in stats["switches"] if s["epoch"] == 3] == ["the learning rate falls from 0.1 to 0.01"]
        assert stats["levels"] == {"powersgd(rank=1)": 2}
        factors = 64 + 24 + 48 + 64  # sides of the two matrices
        plain = 64 + 48 + 2 * 48 + 480 + 10
        agreement = 8 * (2 * 8 + 1)  # norms and deviations of eight tensors, and of all
        step = {rank: 3 * 4 * (rank * factors + plain) for rank in (1, 4)}
        assert sent == [step[4], *(step[rank] + agreement for rank in (4, 4, 1, 4, 4, 4, 1))]


def skip_a_branch(rank: int) -> tuple[dict, dict, list]:
    """`c` has a gradient in the first epoch only; in the second one nobody uses it."""
    model = wrap(find_unused_parameters=True)
    optimizer = optimizer_of(model)
    handle = gradwire.attach(model, controller=accordion(), optimizer=optimizer)
    memories = []
    for epoch in range(3):
        for step in range(2):
            given = gradients(SHAPES, rank, 2 * epoch + step)
            reduced(model, {n: g for n, g in given.items() if n != "c" or epoch != 1})
        memories.append(owed(handle, SHAPES)["c"])
        settings = handle.end_epoch()
    return dict(settings.levels), handle.state_dict()["steering"]["controller"]["kept"]["norms"], memories


def test_a_branch_that_nobody_used_for_an_epoch_keeps_its_memory(pool: Pool) -> None:
    results = pool.run(2, skip_a_branch)
    assert agree([result[:2] for result in results])
    for levels, norms, (first, second, third) in results:
        assert levels["c"] == LOW  # from zero
        assert norms["c"] > 0
        assert torch.equal(first, second)
        assert not torch.equal(second, third)


# ---------------------------------------------------------------- one controller, two models


def train_two(rank: int, shared: bool) -> list[tuple[list[Tensor], list[dict], dict]]:
    """Two models side by side, the second with other gradients; under one controller, or each under its own."""
    one = accordion()
    runs = []
    for _ in range(2):
        model = wrap()
        controller = one if shared else accordion()
        handle = gradwire.attach(model, controller=controller, optimizer=optimizer_of(model), strategy="all_gather")
        runs.append((model, handle, []))
    for step in range(EPOCHS * STEPS):
        for number, (model, handle, outs) in enumerate(runs):
            outs.append(reduced(model, moving(rank, step + number * STEPS)))
            if step % STEPS == STEPS - 1 and (number == 0 or step > STEPS):  # the second ends an epoch less
                handle.end_epoch()
    assert one == accordion()
    return [(outs, handle.stats()["switches"], dict(handle.settings.levels)) for _, handle, outs in runs]


def test_one_controller_serves_two_models_that_train_independently(pool: Pool) -> None:
    shared, separate = (pool.run(2, train_two, shared) for shared in (True, False))
    assert agree(shared)
    for together, alone in zip(shared, separate, strict=True):
        for (outs, switches, levels), (wanted, their_switches, their_levels) in zip(together, alone, strict=True):
            assert same(outs, wanted)
            assert switches == their_switches != []
            assert levels == their_levels
        assert together[0][1] != together[1][1]


# ---------------------------------------------------------------- other controllers, other loops


def grow_the_batch(rank: int) -> tuple[list[tuple], list[Tensor], dict]:
    """As documented: micro-batches under no_sync, the rate of the schedule times the factor."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = optimizer_of(model)
    controller = gradwire.AccordionBatch(factor=4, codec="topk(ratio=0.1)", every=1, eta=1.0)
    handle = gradwire.attach(model, controller=controller, optimizer=optimizer)
    rates, settings, seen, step = [0.1, 0.1, 0.1, 0.01], handle.settings, [], 0
    for rate, then in itertools.pairwise(rates):
        optimizer.param_groups[0]["lr"] = rate * settings.rate_factor
        before = handle.stats()["steps"]
        for _ in range(8 // settings.batch_factor):
            with model.no_sync():
                train(model, _Nothing(), range(step, step + settings.batch_factor - 1))
            train(model, _Only(optimizer), range(step + settings.batch_factor - 1, step + settings.batch_factor))
            step += settings.batch_factor
        seen.append((settings.batch_factor, optimizer.param_groups[0]["lr"], handle.stats()["steps"] - before))
        settings = handle.end_epoch(rate, then)
    return seen, [weights(model)], {"after": settings.batch_factor}


class _Nothing:
    """In the place of an optimizer while gradients add up."""

    def zero_grad(self) -> None:
        pass

    def step(self) -> None:
        pass


class _Only(_Nothing):
    """Takes the step, and clears the gradients behind it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


def test_the_batch_grows_and_a_fall_of_the_rate_brings_it_back(pool: Pool) -> None:
    results = pool.run(2, grow_the_batch)
    assert agree(results)
    assert results[0][0] == [(1, 0.1, 8), (1, 0.1, 8), (4, 0.4, 2)]
    assert results[0][2] == {"after": 1}


def warm_up(rank: int) -> tuple[list[dict], list[int], dict]:
    model = wrap()
    warmup = gradwire.Warmup("topk(ratio=0.01)", begin=0.16, factor=0.25, epochs=2)
    handle = gradwire.attach(model, controller=warmup, optimizer=optimizer_of(model))
    levels, sent = [], [0]
    for epoch in range(4):
        reduced(model, gradients(SHAPES, rank, epoch))
        levels.append(handle.stats()["levels"])
        sent.append(handle.stats()["payload_bytes"])
        handle.end_epoch()
    return levels, [b - a for a, b in itertools.pairwise(sent)], handle.stats()


def test_warm_up_sends_less_from_epoch_to_epoch(pool: Pool) -> None:
    for levels, sent, stats in pool.run(2, warm_up):
        assert levels == [{f"topk(ratio={r})": 3} for r in (0.16, 0.04, 0.01, 0.01)]
        assert sent[0] > sent[1] > sent[2] == sent[3]
        assert [s["epoch"] for s in stats["switches"]] == [0, 1]


def sink(rank: int) -> tuple[list[dict], float]:
    """A constant gradient and growing noise; the loss is scaled, which must not look like a change."""
    model, scale = wrap(), 64.0
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    adaqs = gradwire.AdaQS(("topk(ratio=0.01)", "topk(ratio=0.1)"))
    handle = gradwire.attach(model, controller=adaqs, optimizer=optimizer_of(model), scaler=scaler)
    levels, norm = [], 0.0
    for epoch, noise in enumerate((0.5, 0.5, 4.0)):
        total = torch.zeros(SHAPES["a"], dtype=torch.float64)
        for step in range(3):
            scale = scale / 4 if epoch == 1 else scale * 2
            scaler.update(scale)
            given = {n: 1 + noise * g for n, g in gradients(SHAPES, rank, 10 * epoch + step).items()}
            total += given["a"]
            model.zero_grad()
            scaler.scale(model(given)).backward()
        if epoch == 1:
            sums = handle.state_dict()["steering"]["sums"]["a"]
            norm = float((sums.double() - total.flatten()).norm() / total.norm())
        handle.end_epoch()
        levels.append(handle.stats()["levels"])
    return levels, norm


def test_norms_are_in_units_of_the_unscaled_loss(pool: Pool) -> None:
    for levels, error in pool.run(2, sink):
        assert levels == [{"topk(ratio=0.01)": 3}, {"topk(ratio=0.01)": 3}, {"topk(ratio=0.1)": 3}]
        assert error < 1e-6


def alone(rank: int) -> tuple[list[str], dict, dict, int]:
    model = wrap()
    optimizer = optimizer_of(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = gradwire.attach(model, controller=accordion(), optimizer=optimizer)
    for epoch in range(3):
        given = gradients(SHAPES, rank, 0)
        assert same(reduced(model, given), given)
        optimizer.param_groups[0]["lr"] = 0.01 if epoch == 2 else 0.1
        handle.end_epoch()
    batch = gradwire.AccordionBatch(factor=2, every=1)
    handle.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = gradwire.attach(model, controller=batch, optimizer=optimizer)
    for _ in range(2):
        reduced(model, gradients(SHAPES, rank, 0))
        again.end_epoch()
    norms = {n: float(gradients(SHAPES, rank, 0)[n].norm()) for n in MATRICES}
    return [str(w.message) for w in caught], norms, handle.stats(), again.settings.batch_factor


def test_the_only_rank_is_watched_too(pool: Pool) -> None:
    ((told, norms, stats, factor),) = pool.run(1, alone)
    assert told == [
        "gradwire: the process group has one rank, so there is nothing to send; gradients pass through uncompressed"
    ]
    why = {s["parameter"]: s["why"] for s in stats["switches"]}
    assert why == {n: f"norm {v:.3g} to {v:.3g} in 1 epochs: 0.00 < eta" for n, v in norms.items()} | {
        "*": "the learning rate falls from 0.1 to 0.01"
    }
    assert (stats["levels"], stats["sent_bytes"], factor) == ({LOW: 3}, 0, 2)


def report(rank: int) -> tuple[dict, dict, dict]:
    model = wrap()
    handle = gradwire.attach(model, controller=accordion(), optimizer=optimizer_of(model))
    reduced(model, gradients(SHAPES, rank, 0))
    return handle.stats()["residual_norms"], owed(handle, SHAPES), handle_values(handle)


def test_trackers_get_the_norm_of_each_memory_and_the_levels(pool: Pool) -> None:
    for norms, memories, values in pool.run(2, report):
        assert norms.keys() == set(MATRICES)
        for name, norm in norms.items():
            assert norm == pytest.approx(float(memories[name].norm()), rel=1e-5)
            assert values[f"residual_norm/{name}"] == norm
        assert values["residual_norm/total"] == pytest.approx(sum(n**2 for n in norms.values()) ** 0.5, rel=1e-6)
        assert values[f"levels/{LOW}"] == 3.0


# ---------------------------------------------------------------- state


class Run:
    """One rank's training, which can be saved to a file in the middle of an epoch and continued from it."""

    def __init__(self, mode: str) -> None:
        self.model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [4], 0.1)
        controller = gradwire.Accordion("powersgd(rank=2)", "topk(ratio=0.05)", every=1, eta=0.3)
        self.handle = gradwire.attach(self.model, controller=controller, optimizer=self.optimizer, mode=mode)
        self.seen: list[Tensor] = []

    def train(self, steps: range) -> None:
        """Three steps an epoch."""
        for step in steps:
            if step % 3 == 0 and step:
                self.scheduler.step()
                self.handle.end_epoch()
            train(self.model, self.optimizer, range(step, step + 1))
            self.seen.append(weights(self.model))

    def parts(self) -> dict[str, Any]:
        handle = {"gradwire": self.handle}
        return {"model": self.model.module, "optimizer": self.optimizer, "scheduler": self.scheduler} | handle


def train_and_save(rank: int, folder: Path, mode: str, at: int) -> tuple[list[Tensor], dict]:
    run = Run(mode)
    run.train(range(at))
    torch.save({name: part.state_dict() for name, part in run.parts().items()}, folder / f"{rank}.pt")
    run.train(range(at, 15))
    return run.seen[at:], run.handle.state_dict()


def load_and_train(rank: int, folder: Path, mode: str, at: int) -> tuple[list[Tensor], dict]:
    run = Run(mode)
    saved = torch.load(folder / f"{rank}.pt", weights_only=True)
    for name, part in run.parts().items():
        part.load_state_dict(saved[name])
    run.train(range(at, 15))
    return run.seen, run.handle.state_dict()


@pytest.mark.parametrize("mode, at", [("overlap", 7), ("after_backward", 8), ("overlap", 12)])
def test_a_run_resumed_in_the_middle_of_an_epoch_is_the_uninterrupted_one(
    pool: Pool, tmp_path: Path, mode: str, at: int
) -> None:
    """Step 12 is where an epoch has ended but for end_epoch, and the rate falls."""
    whole = pool.run(2, train_and_save, tmp_path, mode, at)
    pool.stop()  # the rest runs in new processes
    for (wanted, end), (got, resumed) in zip(whole, pool.run(2, load_and_train, tmp_path, mode, at), strict=True):
        assert same(wanted, got)
        assert same(end, resumed)
        switches = end["steering"]["controller"]["switches"]
        assert {s["to"] for s in switches} == {"powersgd(rank=2)", "topk(ratio=0.05)"}
        assert {s["why"] for s in switches if s["epoch"] == 3} == {"the learning rate falls from 0.02 to 0.002"}


# ---------------------------------------------------------------- what is refused


def wrong(rank: int) -> list[str]:
    """One after the other, on all ranks; each leaves the model as it was."""
    model = wrap()
    optimizer = optimizer_of(model)
    both: dict[str, Any] = {"optimizer": optimizer}

    def told(error: type[Exception], **options: Any) -> str:
        return message(error, gradwire.attach, model, **options)

    found = [
        told(gradwire.ConfigError, controller=accordion()),
        told(gradwire.ConfigError, codec="qsgd", controller=accordion(), **both),
        told(gradwire.UnknownName, controller="accordian", **both),
        told(gradwire.Incompatible, controller=accordion(high=f"topk(ratio=0.0{rank + 1})"), **both),
    ]
    plain = gradwire.attach(model, LOW)
    found.append(message(gradwire.ConfigError, plain.end_epoch))
    reduced(model, gradients(SHAPES, rank, 0))  # which does not disturb training
    states = plain.state_dict()
    plain.detach()
    handle = gradwire.attach(model, controller=accordion(), **both)
    found.append(message(gradwire.StateMismatch, handle.load_state_dict, states))
    return found


def test_mistakes_are_told_on_every_rank(pool: Pool) -> None:
    spec = f"accordion(low='{LOW}', high='{HIGH}', eta=0.3, every=1)"
    theirs = [f"controller accordion(low='{LOW}', high='topk(ratio=0.0{r + 1})', eta=0.3, every=1)" for r in (0, 1)]
    rest = "memory error_feedback, strategy auto, tensors matrices, seed 0, nmse_every 0, mode overlap"
    for found in pool.run(2, wrong):
        assert found == [
            "attach: a controller follows the learning rate; pass optimizer=...",
            f"gradwire: the controller chooses among {LOW}, {HIGH}, and codec qsgd is none of them; leave it out",
            "no controller named 'accordian'; did you mean accordion or accordion_batch?",
            f"attach: the ranks disagree. Rank 0 has codec {LOW}, {theirs[0]}, {rest}; rank 1 has codec {LOW}, "
            f"{theirs[1]}, {rest}. Call attach with the same arguments on all ranks.",
            "gradwire: end_epoch is for runs under a controller; pass controller=... to attach",
            f"gradwire: this state was saved under controller none, and this run has {spec}; attach with the saved "
            "one, or start without the state",
        ]
