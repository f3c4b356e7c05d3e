"""The autopilot under DDP: replicas stay alike, nothing is lost, ranks decide alike, a resumed run keeps its choice.

Time is made up: each rank's clock goes on by what a step of the codec that is on is said to cost.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from given import SHAPES, agree, batch, gradients, message, network, reduced, same, weights, wrap
from ranks import Pool
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import checkpoint
from gradwire.core import moments
from gradwire.integrations import autopilot
from gradwire.planner import quality

pytestmark = pytest.mark.dist
SPARSE, CAST = "topk(ratio=0.05)", "bf16"
SLOW_LINK = {"none": 1.0, CAST: 0.6, SPARSE: 0.2}
FAST_LINK = {"none": 0.1, CAST: 0.15, SPARSE: 0.2}
TRIAL = 120  # steps that end a trial of three


class Clock:
    """Of one rank: seconds that a test lets pass."""

    def __init__(self, rate: float = 1.0, offset: float = 0.0) -> None:
        self.now, self.rate = offset, rate

    def __call__(self) -> float:
        return self.now

    def step(self, handle: gradwire.Handle, costs: Mapping[str, float]) -> None:
        """A step of the codec that is on has passed."""
        self.now += self.rate * costs[handle.stats()["codec"]]


@contextmanager
def lab(clock: Clock, candidates: tuple[str, ...] = (CAST, SPARSE)) -> Iterator[None]:
    """Made-up time, and candidates whatever our trainings say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "perf_counter", clock)
        patch.setattr(quality, "safe", lambda kind: list(candidates))
        yield


class Run:
    """One rank's training under the autopilot."""

    def __init__(self, rank: int, costs: Mapping[str, float], clock: Clock | None = None, **options: Any) -> None:
        self.rank, self.costs, self.clock = rank, costs, clock or Clock()
        candidates = options.pop("candidates", (CAST, SPARSE))
        with lab(self.clock, candidates):
            self.model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
            self.handle = gradwire.attach(self.model, tensors="all", **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.seen: list[Tensor] = []
        self.on: list[str] = []

    def train(self, steps: range) -> None:
        with lab(self.clock):
            for step in steps:
                x, y = batch(self.rank, step)
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                self.clock.step(self.handle, self.costs)
                self.seen.append(weights(self.model))
                self.on.append(self.handle.stats()["codec"])

    @property
    def found(self) -> dict[str, Any]:
        return self.handle.stats()["autopilot"]


# ---------------------------------------------------------------- all ranks alike


def train_with_odd_clocks(rank: int) -> tuple:
    """Ranks' clocks run at different rates, from different times; rank 1 would choose otherwise by itself."""
    costs = dict(SLOW_LINK) if rank != 1 else {"none": 0.05, CAST: 0.1, SPARSE: 0.15}
    run = Run(rank, costs, Clock(rate=1.0 + rank / 10, offset=1e3 * rank))
    run.train(range(TRIAL))
    return run.seen, run.on, run.found


def test_replicas_stay_alike_and_decide_alike_whatever_their_clocks_say(pool: Pool) -> None:
    results = pool.run(3, train_with_odd_clocks)
    assert agree([seen for seen, _, _ in results])
    assert agree([on for _, on, _ in results])
    assert agree([found for _, _, found in results])
    _, on, found = results[0]
    assert set(on) == {"none", CAST, SPARSE}
    assert (found["phase"], found["choice"], found["trials"]) == ("watch", SPARSE, 1)
    assert found["seconds"] == pytest.approx({"none": 1.2, CAST: 0.72, SPARSE: 0.24})  # the slowest rank's
    assert on[-1] == SPARSE


def train_through_changes(rank: int) -> tuple:
    """A slow link becomes fast, and slow again."""
    run = Run(rank, SLOW_LINK)
    run.train(range(TRIAL))
    choices = [run.found["choice"]]
    for costs in (FAST_LINK | {SPARSE: 0.15, CAST: 0.12}, SLOW_LINK):
        run.costs = costs
        run.train(range(75 + TRIAL))
        choices.append(run.found["choice"])
    return run.seen, choices, run.found["trials"]


def test_it_looks_again_when_the_step_time_changes(pool: Pool) -> None:
    results = pool.run(2, train_through_changes)
    assert agree([seen for seen, _, _ in results])
    for _, choices, trials in results:
        assert (choices, trials) == ([SPARSE, "none", SPARSE], 3)


def train_with_and_without_checks(rank: int) -> tuple:
    runs = [Run(rank, SLOW_LINK, **options) for options in ({}, {"check": 4})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for run in runs:
            run.train(range(TRIAL))
    return [run.seen for run in runs], runs[1].handle.stats()["checks"]


def test_codecs_are_checked_and_training_stays_the_same(pool: Pool) -> None:
    for (plain, checked), found in pool.run(2, train_with_and_without_checks):
        assert agree([plain, checked])
        assert found["steps"] > 3
        assert found["warnings"] == {}


def plain_and_autopilot(rank: int, options: dict) -> tuple:
    run = Run(rank, FAST_LINK, **options)
    run.train(range(30))
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(30):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return run.seen[-1], weights(model), run.found, run.handle.stats()


def test_without_candidates_it_is_plain_ddp_bit_for_bit(pool: Pool) -> None:
    for ours, plain, found, stats in pool.run(2, plain_and_autopilot, {"candidates": ()}):
        assert torch.equal(ours, plain)
        assert (found["phase"], found["choice"], found["candidates"]) == ("watch", "none", ["none"])
        numel = sum(p.numel() for p in network().parameters())
        assert (stats["codec"], stats["steps"]) == ("none", 30)
        assert stats["sent_bytes_per_step"] == pytest.approx(4 * numel, abs=1)  # 8 bytes in 25 steps are for time


def train_short(rank: int, costs: dict) -> tuple:
    run = Run(rank, costs)
    run.train(range(TRIAL))
    stats = run.handle.stats()
    return run.found["choice"], run.on, stats["steps"], stats["sent_bytes"]


def test_it_goes_back_to_plain_ddp_where_nothing_pays(pool: Pool) -> None:
    for choice, on, steps, sent in pool.run(2, train_short, FAST_LINK):
        assert (choice, on[-1], steps) == ("none", "none", TRIAL)
        assert {CAST, SPARSE} < set(on)
        assert sent > on.count("none") * 4 * sum(p.numel() for p in network().parameters())


# ---------------------------------------------------------------- nothing is lost


def owed(handle: Any, shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """What this rank still owes, whoever owes it."""
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    for one in handle._handles.values():
        for name, shape in shapes.items():
            found = checkpoint.owed(one.engine, name, shape)
            if found is not None:
                total[name] += found
    return total


def add_up(rank: int, strategy: str, candidates: tuple[str, ...], bad: tuple[int, ...] = ()) -> tuple:
    """The sum of what was applied, what is owed along the way and at the end; steps `bad` are not finite."""
    clock, costs = Clock(), {"none": 1.0} | dict.fromkeys(candidates, 2.0)
    with lab(clock, candidates):
        model = wrap()
        handle = gradwire.attach(model, strategy=strategy)
        applied = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
        on, checks = [], []
        for step in range(75):
            given = gradients(SHAPES, rank, step)
            if step in bad:
                given["a"] = given["a"] * math.inf
            found = reduced(model, given)
            if step not in bad:
                for name, gradient in found.items():
                    applied[name] += gradient
            clock.step(handle, costs)
            on.append(("repaying " if handle._repaying else "") + handle.stats()["codec"])
            if step % 7 == 0 or step == 74:
                checks.append((step, {n: a.clone() for n, a in applied.items()}, owed(handle, SHAPES)))
        return on, checks


def check_sums(results: list, bad: tuple[int, ...] = ()) -> None:
    world = len(results)
    for index, (step, applied, _) in enumerate(results[0][1]):
        steps = [s for s in range(step + 1) if s not in bad]
        for name in SHAPES:
            wanted = sum(gradients(SHAPES, r, s)[name].double() for r in range(world) for s in steps) / world
            left = torch.stack([checks[index][2][name] for _, checks in results]).mean(0)
            assert torch.allclose(applied[name] + left, wanted, rtol=0, atol=1e-4), (step, name)
    assert not any(tensor.any() for _, checks in results for tensor in checks[-1][2].values())


STRATEGIES = [("auto", 3), ("scatter_reduce_gather", 3), ("hierarchical(per_node=2)", 4)]


@pytest.mark.parametrize("strategy, world", STRATEGIES)
def test_what_a_codec_owes_is_repaid_when_it_is_switched_away(pool: Pool, strategy: str, world: int) -> None:
    results = pool.run(world, add_up, strategy, (SPARSE, "efsignsgd"))
    assert agree([on for on, _ in results])
    assert {"repaying topk(ratio=0.05)", "repaying efsignsgd"} < set(results[0][0])
    assert results[0][0][-1] == "none"
    check_sums(results)


def test_a_step_that_is_not_finite_repays_nothing_and_is_made_again(pool: Pool) -> None:
    [(on, _), _] = pool.run(2, add_up, "auto", (SPARSE,))
    first = on.index(f"repaying {SPARSE}")
    bad = (first, first + 1)
    results = pool.run(2, add_up, "auto", (SPARSE,), bad)
    assert results[0][0][first : first + 3] == 3 * [f"repaying {SPARSE}"]
    assert results[0][0][first + 3] == "none"
    check_sums(results, bad)


def owners_alone(rank: int) -> tuple[list[float], str]:
    """A codec without a memory, under a strategy whose owners keep one."""
    clock, costs, found = Clock(), {"none": 1.0, "qsgd": 2.0}, []
    with lab(clock, ("qsgd",)):
        model = wrap()
        handle = gradwire.attach(model, strategy="scatter_reduce_gather(owner_memory=True)")
        for step in range(60):
            reduced(model, gradients(SHAPES, rank, step))
            clock.step(handle, costs)
            found.append(handle._handles["qsgd"].engine.debt())
    return found, handle.stats()["codec"]


def test_what_owners_alone_owe_is_repaid_too(pool: Pool) -> None:
    for debts, codec in pool.run(2, owners_alone):
        assert max(debts) > 1
        assert (debts[-1], codec) == (0.0, "none")


def use_some(rank: int, scaled: bool) -> tuple:
    """A parameter that nobody uses while a codec repays; the loss scale may be another in each step."""
    clock, costs = Clock(), {"none": 1.0, SPARSE: 2.0}
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))  # before the first loss it has no scale that could be set
    shapes = {"a": (41, 53), "c": (37, 67)}
    with lab(clock, (SPARSE,)):
        model = wrap(shapes, find_unused_parameters=True)
        handle = gradwire.attach(model, scaler=scaler)
        applied, given = ({n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()} for _ in range(2))
        for step in range(70):
            scale = 2.0 ** (step % 5) if scaled else 1.0
            scaler.update(scale)
            now = gradients(shapes, rank, step)
            ends = handle._on == SPARSE and handle._watch.steps + 1 == handle.pilot.turn.steps
            if ends or handle._repaying:
                del now["c"]
            found = reduced(model, {name: scale * gradient for name, gradient in now.items()})
            for name in now:
                applied[name] += found[name] / scale
                given[name] += now[name]
            clock.step(handle, costs)
        kept = float(handle._handles[SPARSE].engine.kept_scale)
        left = {name: still / kept for name, still in owed(handle, shapes).items()}
        return applied, given, left, handle.stats()["codec"]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_parameter_that_nobody_uses_keeps_what_it_is_owed(pool: Pool, scaled: bool) -> None:
    results = pool.run(2, use_some, scaled)
    assert agree([r[0] for r in results])
    for name in ("a", "c"):
        wanted = sum(r[1][name] for r in results) / 2
        left = sum(r[2][name] for r in results) / 2
        assert torch.allclose(results[0][0][name] + left, wanted, rtol=0, atol=1e-4)
    assert [bool(left[n].any()) for _, _, left, _ in results for n in ("a", "c")] == [False, True, False, True]
    assert {r[3] for r in results} == {"none"}


# ---------------------------------------------------------------- saved and continued


def save_and_resume(rank: int, at: int, steps: int) -> tuple:
    """A run saved after step `at`, and one that continues from there: their choices, and what they owe."""
    run = Run(rank, SLOW_LINK)
    run.train(range(at))
    saved = copy.deepcopy(run.handle.state_dict())
    state = copy.deepcopy((run.model.module.state_dict(), run.optimizer.state_dict()))
    before = (run.found, run.on[-1], run.handle.stats()["residual_norm"])
    run.train(range(at, steps))
    again = Run(rank, SLOW_LINK)
    again.model.module.load_state_dict(state[0])
    again.optimizer.load_state_dict(state[1])
    again.handle.load_state_dict(saved)
    after = (again.found, again.handle.stats()["codec"], again.handle.stats()["residual_norm"])
    again.train(range(at, steps))
    return before, after, run, again.seen, again.on, run.seen[at:], run.on[at:], saved


def resume(rank: int, at: int, steps: int) -> tuple:
    before, after, _, *rest = save_and_resume(rank, at, steps)
    return before, after, *rest


def test_a_resumed_run_keeps_its_choice_and_goes_on_bit_for_bit(pool: Pool) -> None:
    results = pool.run(2, resume, TRIAL, TRIAL + 30)
    for before, after, seen, on, expected, was_on, saved in results:
        assert same(before, after)
        assert before[0]["choice"] == before[1] == SPARSE
        assert set(on) == set(was_on) == {SPARSE}
        assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))
        assert {type(v) for v in saved["autopilot"].values()} <= {str, int, float, dict}


def test_a_run_resumed_within_its_trial_tries_anew_and_repays_first(pool: Pool) -> None:
    results = pool.run(2, resume, 28, 28 + TRIAL)
    for before, _, _, on, _, _, saved in results:
        assert before[1] == saved["autopilot"]["on"] == SPARSE
        assert before[2] > 0
        assert on[0] == SPARSE  # it repays
        assert on[1] == "none"
        assert on[-1] == SPARSE
    assert agree([r[2] for r in results])


def load_in_another_world(rank: int, states: list[dict]) -> tuple:
    run = Run(rank, SLOW_LINK)
    run.handle.load_state_dict(states)
    run.train(range(TRIAL, TRIAL + 10))
    return run.seen, set(run.on), run.found


def save(rank: int) -> dict:
    run = Run(rank, SLOW_LINK)
    run.train(range(TRIAL))
    return run.handle.state_dict()


def test_another_number_of_ranks_keeps_the_choice(pool: Pool) -> None:
    states = pool.run(2, save)
    results = pool.run(3, load_in_another_world, states)
    assert agree([r[0] for r in results])
    assert all((on, found["choice"]) == ({SPARSE}, SPARSE) for _, on, found in results)


def load_unsafe(rank: int, state: list[dict]) -> tuple:
    """The codec that was chosen is no longer safe."""
    run = Run(rank, SLOW_LINK, candidates=(CAST,))
    run.handle.load_state_dict(state)
    before = run.handle.stats()["residual_norm"]
    run.train(range(TRIAL, 2 * TRIAL))
    return before, run.on, run.found, run.handle._handles[SPARSE].engine.debt()


def test_a_choice_that_is_no_longer_safe_repays_and_is_left(pool: Pool) -> None:
    states = pool.run(2, save)
    for before, on, found, owes in pool.run(2, load_unsafe, states):
        assert before > 0
        assert on[0] == SPARSE
        assert SPARSE not in on[1:]
        assert (found["choice"], found["candidates"], owes) == (CAST, ["none", CAST], 0.0)


def load_elsewhere(rank: int, states: list[dict], sparse: list[dict]) -> tuple[str, int]:
    run = Run(rank, SLOW_LINK)
    told = message(gradwire.StateMismatch, run.handle.load_state_dict, sparse)
    fixed = gradwire.attach(DistributedDataParallel(network()), SPARSE, tensors="all")
    fixed.load_state_dict(states)  # what the autopilot saved is the state of the codec it had on
    return told, fixed.stats()["steps"]


def save_sparse(rank: int) -> dict:
    return gradwire.attach(DistributedDataParallel(network()), SPARSE, tensors="all").state_dict()


def test_states_with_and_without_the_autopilot(pool: Pool) -> None:
    for told, steps in pool.run(2, load_elsewhere, pool.run(2, save), pool.run(2, save_sparse)):
        assert told == (
            "gradwire: this state was saved by a run with codec 'topk(ratio=0.05)' and without the autopilot; attach "
            "with that codec, or start without the state"
        )
        assert steps > 0


# ---------------------------------------------------------------- DDP's own ways


def go(rank: int, way: str) -> tuple:
    """A whole trial in one of the ways in which DDP is used."""
    clock = Clock()
    with lab(clock):
        options = {"find_unused_parameters": way == "unused", "static_graph": way == "static"}
        model = DistributedDataParallel(network(), bucket_cap_mb=0.001, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if way == "scaler" else None
        mode = "after_backward" if way == "after_backward" else "overlap"
        handle = gradwire.attach(model, "auto", scaler=scaler, optimizer=optimizer, mode=mode, tensors="all")

        def step(index: int) -> None:
            x, y = batch(rank, index)
            optimizer.zero_grad()
            if way == "no_sync":
                with model.no_sync():
                    nn.functional.cross_entropy(model(x), y).backward()
            loss = nn.functional.cross_entropy(model(x), y)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            clock.step(handle, SLOW_LINK)

        if way == "join":
            with model.join():
                for index in range(TRIAL + 10 * rank):
                    step(index)
        else:
            for index in range(TRIAL):
                step(index)
        stats = handle.stats()
        handle.detach()
        step(0)
        return weights(model), stats["autopilot"]["choice"], stats["codec"], stats["steps"]


@pytest.mark.parametrize("way", ["no_sync", "unused", "static", "scaler", "after_backward"])
def test_as_ddp_is_used(pool: Pool, way: str) -> None:
    results = pool.run(2, go, way)
    assert agree([r[0] for r in results])
    for _, choice, codec, steps in results:
        assert (choice, codec, steps) == (SPARSE, SPARSE, TRIAL)


def run_out(rank: int) -> tuple:
    """Rank 0 runs out of data in the middle of the trial; DDP's join lets it shadow the other."""
    clock = Clock()
    with lab(clock):
        model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        handle = gradwire.attach(model, tensors="all")
        with model.join():
            for index in range(40 + 60 * rank):
                x, y = batch(rank, index)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                clock.step(handle, SLOW_LINK)
        stats = handle.stats()
        return weights(model), stats["autopilot"], stats["steps"]


def test_a_rank_that_runs_out_of_data_decides_with_the_others(pool: Pool) -> None:
    results = pool.run(2, run_out)
    assert agree([r[0] for r in results])
    assert agree([r[1:] for r in results])
    assert results[0][2] == 100


# ---------------------------------------------------------------- what is said, and refused


def listen(rank: int) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname}: {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("gradwire").addHandler(handler)
    try:
        Run(rank, SLOW_LINK).train(range(TRIAL))
        Run(rank, SLOW_LINK, candidates=(), task="segmentation").train(range(3))
    finally:
        logging.getLogger("gradwire").removeHandler(handler)
    return lines


def test_the_first_rank_says_what_was_chosen(pool: Pool) -> None:
    assert pool.run(2, listen) == [
        [
            "WARNING: gradwire autopilot: topk(ratio=0.05) takes 200 ms a step, against 1000 ms of plain DDP (bf16 600 "
            "ms); found on this job in 3 rounds",
            "WARNING: gradwire autopilot: plain DDP stays: no codec was tried on segmentation and lost nothing there",
        ],
        [],
    ]


def refuse(rank: int) -> list[str]:
    model = DistributedDataParallel(network())
    attempts: list[Callable[[], Any]] = [
        lambda: gradwire.attach(model, "auto", controller=gradwire.Warmup(codec="topk")),
        lambda: gradwire.attach(model, memory="none"),
        lambda: gradwire.attach(model, "topk", task="images"),
        lambda: gradwire.attach(model, task="music"),
    ]
    told = [message(gradwire.ConfigError, attempt) for attempt in attempts]
    handle = gradwire.attach(model)
    told.append(message(gradwire.Incompatible, gradwire.attach, model, "topk"))
    told.append(message(gradwire.ConfigError, handle.end_epoch))
    return told


def test_what_is_refused(pool: Pool) -> None:
    for told in pool.run(2, refuse):
        assert told == [
            "attach: the autopilot and a controller would both choose codecs; pass one of them",
            "attach: the autopilot takes each codec with its own memory, as it was tried; leave `memory` out, or name "
            "a codec; got memory='none'",
            "attach: `task` is for the autopilot, which chooses by it; leave it out, got 'images'",
            "attach: `task` must be 'images' or 'language' or 'recommendation' or 'segmentation', got 'music'",
            "attach: this model is compressed by none already; call handle.detach() first",
            "gradwire: end_epoch is for runs under a controller; pass controller=... to attach",
        ]


def disagree(rank: int) -> str:
    model = DistributedDataParallel(network())
    return message(gradwire.Incompatible, gradwire.attach, model, task=["images", "segmentation"][rank])


def test_ranks_with_other_candidates_are_told_so(pool: Pool) -> None:
    for told in pool.run(2, disagree):
        assert told.startswith("attach: the ranks disagree. Rank 0 has codec none, ")
        assert "mode overlap, the autopilot among nothing. Call attach with the same arguments" in told


def go_back(rank: int) -> tuple[float, float]:
    """Load an early state while a codec owes something."""
    run = Run(rank, SLOW_LINK)
    saved = copy.deepcopy(run.handle.state_dict())
    run.train(range(TRIAL))
    engine = run.handle._handles[SPARSE].engine
    before = engine.debt()
    run.handle.load_state_dict(saved)
    return before, engine.debt()


def test_what_is_owed_by_steps_that_are_undone_is_forgotten(pool: Pool) -> None:
    for before, after in pool.run(2, go_back):
        assert before > 0
        assert after == 0


def candidates_of(rank: int, task: str | None, strategy: str) -> list[str]:
    handle = gradwire.attach(DistributedDataParallel(network()), task=task, strategy=strategy)
    return handle.stats()["autopilot"]["candidates"]


@pytest.mark.parametrize("task, strategy", [("images", "auto"), (None, "auto"), ("language", "all_reduce")])
def test_never_anything_unsafe(pool: Pool, task: str | None, strategy: str) -> None:
    """By the table that is shipped; under a strategy that cannot carry them all, those that it can."""
    kinds = {entry.kind for entry in quality.shipped()} if task is None else {task}
    for found in pool.run(2, candidates_of, task, strategy):
        assert found[0] == "none"
        assert len(found) > 1
        for spec in found[1:]:
            assert {quality.standing(spec, kind).kind for kind in kinds} == {quality.SAFE}


def momentum_correction_is_left_out(rank: int) -> list[str]:
    with lab(Clock(), ("dgc(ratio=0.01)", CAST)):
        return gradwire.attach(DistributedDataParallel(network())).stats()["autopilot"]["candidates"]


def test_a_memory_that_keeps_more_than_debts_is_no_candidate(pool: Pool) -> None:
    assert pool.run(2, momentum_correction_is_left_out) == 2 * [["none", CAST]]


def test_one_rank_sends_nothing_and_tries_nothing(pool: Pool) -> None:
    [(told, stats)] = pool.run(1, alone)
    assert (
        told
        == "gradwire: the process group has one rank, so there is nothing to send; gradients pass through uncompressed"
    )
    assert (stats["codec"], stats["steps"], stats["sent_bytes"]) == ("none", 3, 0)


def alone(rank: int) -> tuple[str, dict]:
    model = DistributedDataParallel(network())
    with pytest.warns(UserWarning, match="has one rank") as warned:
        handle = gradwire.attach(model)
    for step in range(3):
        model(batch(0, step)[0]).sum().backward()
    handle.load_state_dict(handle.state_dict())
    return str(warned[0].message), handle.stats()


class Event:
    """A mark on the device's time line, as torch.cuda has them."""

    now, waits = 0.0, 0  # milliseconds

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        Event.waits += 1

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_on_a_gpu_the_devices_clock_counts_and_the_host_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    watch = autopilot.Stopwatch(torch.device("cuda"))
    for milliseconds in (900.0, 500.0, 20.0, 30.0, 25.0, 0.0):  # of the step that begins
        watch.mark()
        Event.now += milliseconds
    assert watch.steps == 5
    assert Event.waits == 0
    assert watch.median(2) == pytest.approx(0.025)
    assert Event.waits == 1
