"""Controllers at work in the engine, on virtual workers: codecs layer by layer, and nothing lost at a switch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.adaptive import Accordion, AccordionBatch, AdaQS, Choice, Choices, Controller, Observation, Warmup
from gradwire.adaptive.values import ALL
from gradwire.collectives import local, trace
from gradwire.collectives.meter import Meter
from gradwire.conformance import lockstep
from gradwire.core.layout import Layout
from gradwire.engine import Engine

LAYOUT = Layout.of([("a", (40, 40)), ("bias", (40,)), ("b", (48, 40)), ("tiny", (3, 5)), ("c", (33, 50))])
PICKED = ("a", "b", "c")


@dataclass(frozen=True)
class Script(Controller):
    """Does what is written: entry e of `plan` holds after the end of epoch e. Keeps what it was shown."""

    name: ClassVar[str] = "script"
    codecs: tuple[str, ...] = ()
    plan: tuple[Mapping[str, str], ...] = ()

    @property
    def levels(self):
        return self.codecs

    def first_choices(self):
        return Choices({ALL: Choice(self.codecs[0], "the first epoch")})

    def next_choices(self, state, seen):
        wanted = self.plan[seen.epoch] if seen.epoch < len(self.plan) else {}
        choices = {name: Choice(level, "as written") for name, level in wanted.items()}
        return Choices(choices, kept={"seen": (*state.kept.get("seen", ()), asdict(seen))})


def shown(engine):
    """What a `Script` was shown, epoch by epoch."""
    return [Observation(**seen) for seen in engine.steering.state_dict()["controller"]["kept"]["seen"]]


class Team:
    """Workers in lock step, the same workers as rows of one engine, and the books: what was given, what came out."""

    def __init__(self, workers, controller, **options):
        self.engines = [
            Engine(None, controller=controller, ranks=(r,), workers=workers, **options) for r in range(workers)
        ]
        self.whole = Engine(None, controller=controller, ranks=range(workers), workers=workers, **options)
        for engine in self.all:
            engine.begin(LAYOUT)
        self.given, self.got = (torch.zeros(LAYOUT.numel, dtype=torch.float64) for _ in range(2))

    @property
    def all(self):
        return [*self.engines, self.whole]

    def step(self, flats, units=(LAYOUT,)):
        """One step; returns worker 0's result, and worker 0's meter."""
        meters = [Meter() for _ in self.engines]
        meter, found = Meter(), [[] for _ in self.all]
        out = torch.empty_like(flats[0])
        with torch.no_grad():
            for unit in units:
                rows = torch.stack([torch.cat([part(x, name) for name in unit.names]) for x in flats])
                programs = [e.reduce(x[None], unit) for e, x in zip(self.engines, rows, strict=True)]
                results = lockstep.run(programs, meters)
                results.append(local.run(self.whole.reduce(rows, unit), len(rows), meter))
                assert all(same(results[0].out, other.out) for other in results[1:-1])
                torch.testing.assert_close(results[0].out, results[-1].out, rtol=1e-3, atol=1e-3, equal_nan=True)
                for segment, piece in zip(unit.segments, unit.split(results[0].out[0]), strict=True):
                    out[LAYOUT.find(segment)] = piece
                for own, result in zip(found, results, strict=True):
                    own.append(result)
        for engine, own in zip(self.all, found, strict=True):
            engine.finish_step(own)
        assert meter == meters[0]
        if out.isfinite().all():
            self.given += torch.stack(flats).double().mean(0)
            self.got += out.double()
        return out, meters[0]

    def end_epoch(self, rate=0.1, then=None):
        programs = [e.end_epoch(rate, rate if then is None else then) for e in self.all]
        first, *others = [*lockstep.run(programs[:-1]), local.run(programs[-1], len(self.engines))]
        assert all(first == other for other in others)
        return first

    def save(self):
        """All workers' states, and those of the same workers as rows."""
        return [checkpoint.save(e) for e in self.engines], [checkpoint.save(self.whole, r) for r in self.whole.ranks]

    def load(self, states, rows):
        for engine, state in zip(self.engines, states, strict=True):
            checkpoint.load(engine, state)
        checkpoint.load(self.whole, rows)

    def owed(self):
        """The mean over the workers of what they owe."""
        means = []
        for workers in ([(e, r) for r, e in enumerate(self.engines)], [(self.whole, r) for r in self.whole.ranks]):
            rows = [
                torch.cat([checkpoint.owed(e, s.name, s.shape, r).reshape(-1) for s in LAYOUT.segments])
                for e, r in workers
            ]
            means.append(torch.stack(rows).double().mean(0))
        torch.testing.assert_close(*means, rtol=1e-3, atol=1e-3)
        return means[0]

    def check_books(self):
        torch.testing.assert_close(self.got + self.owed(), self.given, rtol=1e-4, atol=2e-3)


def same(a, b):
    return torch.equal(a.nan_to_num(1e30), b.nan_to_num(1e30))


def flats(workers, step, layout=LAYOUT):
    """What each worker has in one step."""
    rows = [torch.randn(layout.numel, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(workers)]
    return [torch.cat([(1 + i) * p for i, p in enumerate(layout.split(x))]) for x in rows]  # layers of other sizes


def part(flat, name):
    return LAYOUT.split(flat)[LAYOUT.names.index(name)]


# ---------------------------------------------------------------- codecs by layer


MIXED = {"a": "topk(ratio=0.1)", "b": "efsignsgd(block=64)", "c": "powersgd(rank=2)"}


def mixed_team(workers, **options):
    """One codec for each of the three matrices, after an epoch without a step."""
    team = Team(workers, Script(tuple(MIXED.values()), (MIXED,)), **options)
    team.end_epoch()
    return team


def alone(name, workers):
    """The same matrix in a unit of its own."""
    layout = Layout.of([(name, LAYOUT.segments[LAYOUT.names.index(name)].shape)])
    return layout, lockstep.engines(workers, MIXED[name])


def test_each_codec_gives_what_it_gives_alone():
    team = mixed_team(3)
    others = {name: alone(name, 3) for name in PICKED}
    for step in range(4):
        given = flats(3, step)
        out, meter = team.step(given)
        exact = torch.stack(given).mean(0)
        sent = 0
        for name, (layout, engines) in others.items():
            (own, *_), meters = lockstep.step(engines, layout, [part(x, name) for x in given])
            assert part(out, name).equal(own), (step, name)
            sent += meters[0].sent_bytes
        for name in ("bias", "tiny"):
            torch.testing.assert_close(part(out, name), part(exact, name))
        assert abs(meter.sent_bytes - sent - 4 * 55 * 2 * 2 / 3) <= 1  # and the floats that travel as they are


@pytest.mark.parametrize("nmse_every", [0, 1])
def test_all_codecs_share_their_round_trips(nmse_every):
    """One exchange of topk, two of powersgd; what else travels goes with the first."""
    team, rounds = mixed_team(3, strategy="auto", nmse_every=nmse_every), {}
    for name in PICKED:
        layout, engines = alone(name, 3)
        program = engines[0].reduce(part(flats(3, 0)[0], name)[None], layout)
        rounds[name] = 1 + max(e.round for e in trace.run(program, 3)[0])
    assert rounds == {"a": 1, "b": 1, "c": 2}
    exchanges, _ = trace.run(team.engines[0].reduce(flats(3, 0)[0][None], LAYOUT), 3)
    kinds = [[e.kind for e in exchanges if e.round == r] for r in range(1 + exchanges[-1].round)]
    assert kinds == [["gather", "gather", "sum", "sum", *3 * nmse_every * ["sum"]], ["sum"]]


def test_a_switch_changes_what_is_sent_from_the_next_step_on():
    ranks = [f"powersgd(rank={r})" for r in (4, 1)]
    team = Team(2, Script(tuple(ranks), ({"a": ranks[1]}, {"a": ranks[0], "b": ranks[1]})))
    sides = {name: 40 + height for name, height in (("a", 40), ("b", 48))} | {"c": 83}
    for epoch, rank in enumerate([dict.fromkeys(PICKED, 4), {"a": 1, "b": 4, "c": 4}, {"a": 4, "b": 1, "c": 4}]):
        for step in range(2):
            _, meter = team.step(flats(2, 2 * epoch + step))
            assert meter.payload_bytes == 4 * (55 + sum(rank[name] * sides[name] for name in PICKED))
        factors = {name: team.engines[0].store.get("q", name).tensor.shape[1] for name in PICKED}
        assert factors == rank
        team.end_epoch()


def test_levels_may_be_written_with_their_defaults():
    """`topk()` and `topk(ratio=0.01)` are one codec, and a parameter's level is its full spec."""
    team = Team(2, Script(("topk", "powersgd()"), ({"b": "powersgd()"},)))
    specs = {spec: gradwire.codec(spec).spec for spec in ("topk", "powersgd")}
    team.end_epoch()
    assert team.engines[0].steering.specs == {"a": specs["topk"], "b": specs["powersgd"], "c": specs["topk"]}


def test_compress_all_gives_vectors_a_level_too():
    team = Team(2, Script(("topk(ratio=0.5)", "signsgd"), ({"bias": "signsgd"},)), tensors="all", memory="none")
    assert set(team.engines[0].steering.specs) == set(LAYOUT.names)
    team.end_epoch()
    out, _ = team.step(flats(2, 0))
    assert set(part(out, "bias").tolist()) <= {-1.0, 1.0}
    assert int((part(out, "tiny") != 0).sum()) <= 15


# ---------------------------------------------------------------- nothing is lost


PAIRS = [
    (("powersgd(rank=4)", "powersgd(rank=1)"), "auto"),
    (("topk(ratio=0.1)", "topk(ratio=0.01)"), "all_gather"),
    (("efsignsgd(block=64)", "topk(ratio=0.05)"), "all_gather"),
    (("efsignsgd(block=64)", "topk(ratio=0.05)"), "scatter_reduce_gather"),
    (("efsignsgd(block=64)", "powersgd(rank=2)"), "auto"),
    (("none", "topk(ratio=0.05)"), "auto"),
]


def switching(low, high):
    """All, one after the other, and back: six changes."""
    return Script((low, high), ({"a": high}, {ALL: high}, {"b": low}, {"a": low, "b": high}, {ALL: low}, {"c": high}))


@pytest.mark.parametrize("tensors", ["matrices", "all"])
@pytest.mark.parametrize("codecs, strategy", PAIRS)
def test_results_and_what_is_owed_add_up_over_all_switches(codecs, strategy, tensors):
    team = Team(3, switching(*codecs), strategy=strategy, tensors=tensors)
    assert team.engines[0].memory.name == "error_feedback"
    for step in range(30):
        team.step(flats(3, step))
        if step % 4 == 3:
            team.end_epoch()
    assert team.owed().norm() > 1
    team.check_books()


def test_the_owners_errors_move_when_a_tensor_changes_its_codec():
    """Under scatter-reduce-gather shards are cut over all tensors of a codec, so a switch moves those of the others."""
    codecs = ("efsignsgd(block=64)", "topk(ratio=0.05)")
    team = Team(3, Script(codecs, ({"a": codecs[1]},)), strategy="scatter_reduce_gather")
    team.step(flats(3, 0))
    before = [held(engine) for engine in team.all]
    team.end_epoch()
    team.step(flats(3, 1))
    after = [held(engine) for engine in team.all]
    assert all(a and b and a != b for a, b in zip(before, after, strict=True))
    team.check_books()


def held(engine):
    """Which elements' errors of owners the workers of an engine keep."""
    return {(p.row, p.name): (p.entry.start, p.entry.stop) for p in engine.store.pieces("owner_error")}


def test_a_lossless_level_pays_back_what_is_owed():
    team = Team(2, Script(("topk(ratio=0.01)", "none"), ({ALL: "none"},)))
    for step in range(3):
        team.step(flats(2, step))
    owed = team.owed()
    team.end_epoch()
    given = flats(2, 3)
    out, _ = team.step(given)
    torch.testing.assert_close(out.double(), owed + torch.stack(given).double().mean(0), rtol=1e-5, atol=1e-5)
    assert not team.owed().any()


def test_half_precision_gradients_keep_a_memory_in_full_precision():
    """Also where a tensor's level is lossless, whose error of zero must not make the others' coarse."""
    codecs = ("none", "topk(ratio=0.01)")
    team = Team(2, Script(codecs, ({"b": codecs[1]}, {ALL: codecs[1]})))
    for step in range(6):
        given = [x.half() for x in flats(2, step)]
        out, _ = team.step(given)
        assert out.dtype == torch.float16
        kept = [piece.entry.tensor for piece in team.engines[0].store.pieces("error")]
        assert {t.dtype for t in kept} == {torch.float32}
        if step % 2:
            team.end_epoch()
    assert any(not t.equal(t.half().float()) for t in kept)


def test_two_levels_of_workers_lose_nothing_under_accordion():
    """A rank owns pieces of tensors; what is owed for them survives the switches, and all ranks decide alike."""
    low, high = "topk(ratio=0.2)", "topk(ratio=0.02)"
    team = Team(4, Accordion(low, high, every=1, eta=0.3), strategy="hierarchical(per_node=2)")
    seen = []
    for epoch in range(6):
        for step in range(3):
            x = flats(4, 3 * epoch + step)
            for i, name in enumerate(PICKED):  # each layer's norm moves in other epochs
                for row in x:
                    part(row, name).mul_(3.0 if epoch % (i + 2) == 0 else 1.0)
            team.step(x)
        seen.append(tuple(team.end_epoch().levels.values()))
    assert len(set(seen)) > 3
    team.check_books()


def test_a_bad_step_changes_neither_memories_nor_norms():
    codecs = ("powersgd(rank=4)", "topk(ratio=0.1)")
    team, twin = (Team(2, Script(codecs, ({"b": codecs[1]},))) for _ in range(2))
    for step in range(6):
        given = flats(2, step)
        if step in (1, 4):
            bad = [x.clone() for x in given]
            bad[1].fill_(math.nan)
            bad[0].fill_(math.inf)
            out, _ = team.step(bad)
            assert not any(part(out, name).isfinite().all() for name in PICKED)
            for engine in twin.all:
                engine.step += 1  # random numbers follow the count of steps
        else:
            assert team.step(given)[0].equal(twin.step(given)[0])
        if step == 2:
            first, second = (t.end_epoch() for t in (team, twin))
            assert first == second
    ours, twins = (shown(t.engines[0])[0] for t in (team, twin))
    assert (ours.norms, ours.steps, twins.steps) == (twins.norms, 3, 2)
    assert (team.engines[0].skipped_steps, twin.engines[0].skipped_steps) == (2, 0)


@pytest.mark.parametrize("strategy", ["all_gather", "scatter_reduce_gather"])
def test_parameters_that_nobody_used_keep_their_memory_at_any_level(strategy):
    codecs = ("efsignsgd(block=64)", "topk(ratio=0.05)")
    team = Team(3, switching(*codecs), strategy=strategy, track_unused=True)
    for step in range(18):
        given, unused = flats(3, step), {4: "a", 5: "b", 11: "a", 14: "c"}.get(step)
        if unused:
            before = team.owed()
            for x in given:
                part(x, unused).zero_()
        out, _ = team.step(given)
        if unused:
            assert not part(out, unused).any()
            torch.testing.assert_close(part(team.owed(), unused), part(before, unused))
        if step % 3 == 2:
            team.end_epoch()
    team.check_books()


def test_measured_error_is_that_of_all_codecs_together():
    team = mixed_team(2, nmse_every=1)
    given = flats(2, 0)
    out, _ = team.step(given)
    exact = torch.stack(given).mean(0)
    error = sum(float((part(out, n) - part(exact, n)).square().sum()) for n in PICKED)
    wanted = error / sum(float(part(exact, n).square().sum()) for n in PICKED)
    assert team.engines[0].nmse() == pytest.approx(wanted, rel=1e-4)
    assert 0 < wanted < 1
    assert team.engines[0].nmse(forget=True) == pytest.approx(wanted, rel=1e-4)
    assert team.engines[0].nmse() is None


# ---------------------------------------------------------------- what controllers see


def test_norms_are_those_of_the_workers_own_sums_and_their_mean():
    """Also where DDP rebuilds its buckets in the middle, and in units of a loss scale of 1."""
    team, scale = Team(3, Script(("topk(ratio=0.1)",))), 8.0
    orders = [[("a", "bias"), ("b", "tiny", "c")], [("c", "b"), ("tiny",), ("bias", "a")]]
    rows = [flats(3, step) for step in range(5)]
    for step, given in enumerate(rows):
        for engine in team.all:
            engine.begin_step(loss_scale=scale if step >= 2 else 1.0)
        units = [Layout(tuple(s for n in names for s in LAYOUT.segments if s.name == n)) for names in orders[step >= 2]]
        team.step([engine.loss_scale * x for x, engine in zip(given, team.engines, strict=True)], units)
    team.end_epoch(rate=0.3, then=0.2)
    (seen,) = shown(team.engines[2])
    assert (seen.epoch, seen.learning_rate, seen.next_learning_rate, seen.steps) == (0, 0.3, 0.2, 5)
    each = torch.stack([torch.stack(given) for given in rows]).double()  # step, worker, element
    total = each.sum(0)
    for name in LAYOUT.names:
        mine, all_ = part(each, name), part(total, name)
        assert seen.norms[name] == pytest.approx(float(all_.norm(dim=1).mean()), rel=1e-5)
        variance = mine.square().sum(2).mean(0) - (all_ / 5).square().sum(1)
        assert seen.deviations[name] == pytest.approx(float(variance.sqrt().mean()), rel=1e-4)
    assert seen.whole_norm == pytest.approx(float(total.norm(dim=1).mean()), rel=1e-5)


def test_norms_of_half_precision_do_not_overflow_there():
    team = Team(2, Script(("none",)))
    team.step([torch.full((LAYOUT.numel,), 60000.0, dtype=torch.float16)] * 2)
    team.step([torch.full((LAYOUT.numel,), 60000.0, dtype=torch.float16)] * 2)
    team.end_epoch()
    (seen,) = shown(team.engines[0])
    assert seen.norms["a"] == pytest.approx(2 * 40 * 60000, rel=1e-3)
    assert seen.deviations["a"] == pytest.approx(0, abs=1e3)


def test_every_epoch_is_seen_by_itself():
    team = Team(2, Script(("topk(ratio=0.1)",)))
    for epoch in range(3):
        team.step([torch.full((LAYOUT.numel,), float(epoch + 1))] * 2)
        team.end_epoch()
    seen = shown(team.engines[0])
    assert [s.norms["a"] for s in seen] == pytest.approx([40.0, 80.0, 120.0])
    assert [(s.epoch, s.steps) for s in seen] == [(0, 1), (1, 1), (2, 1)]


def test_a_parameter_without_a_gradient_has_a_norm_of_zero():
    cluster = gradwire.VirtualCluster(2, controller=Accordion("topk(ratio=0.5)", "topk(ratio=0.1)", every=1))
    grads = {n: [torch.ones(40, 40)] * 2 for n in ("a", "b")}
    cluster.reduce(grads)
    cluster.end_epoch(0.1, 0.1)
    cluster.reduce({"a": grads["a"]})
    assert set(cluster.end_epoch(0.1, 0.1).levels) == {"a", "b"}
    why = {s.parameter: s.why for s in cluster.switches}
    assert why == {"a": "norm 40 to 40 in 1 epochs: 0.00 < eta"}  # `b` went from 40 to 0 and stays at `low`
    assert cluster.state_dicts()[0]["steering"]["controller"]["kept"]["norms"] == {"a": 40.0, "b": 0.0}


def test_an_epoch_without_a_step_is_no_news():
    team = Team(2, Accordion("topk(ratio=0.5)", "topk(ratio=0.1)", every=1))
    team.end_epoch()
    assert set(team.end_epoch().levels.values()) == {"topk(ratio=0.5)"}


def test_workers_with_different_data_decide_alike():
    """Worker 0's norm halves, worker 1's stays, and the mean decides; alone they would disagree."""
    low, high = "topk(ratio=0.2)", "topk(ratio=0.1)"
    levels = {}
    for other in (1.0, 9.0):  # how large worker 1's gradient is
        team = Team(2, Accordion(low, high, every=1))
        for factor in (1.0, 0.3):
            team.step([factor * torch.ones(LAYOUT.numel), other * torch.ones(LAYOUT.numel)])
            settings = team.end_epoch()  # checks that they are the same
        levels[other] = set(settings.levels.values())
    assert levels == {1.0: {high}, 9.0: {high}}
    team = Team(2, Accordion(low, high, every=1))
    for factor in (1.0, 0.1):
        team.step([factor * torch.ones(LAYOUT.numel), 0.5 * torch.ones(LAYOUT.numel)])
        settings = team.end_epoch()
    assert set(settings.levels.values()) == {low}


def test_the_published_controllers_run_in_the_engine():
    """AdaQS goes on when its ratio halves, Warmup from epoch to epoch, the batch with the norms of the mean."""
    adaqs = Team(2, AdaQS(("topk(ratio=0.01)", "topk(ratio=0.1)")))
    warm = Team(2, Warmup("topk(ratio=0.01)", epochs=2))
    batch = Team(2, AccordionBatch(factor=4, every=1))
    found = []
    for epoch in range(3):
        noise = 0.1 * 4.0**epoch  # a constant gradient that sinks into its noise
        for step in range(4 if epoch < 2 else 1):  # the large batch: a quarter of the steps
            for team in (adaqs, warm, batch):
                team.step([1 + noise * x for x in flats(2, 10 * epoch + step)])
        kinds = [set(team.end_epoch().levels.values()) for team in (adaqs, warm)]
        found.append((*kinds, batch.end_epoch().batch_factor))
    assert [f[0] for f in found] == [{"topk(ratio=0.01)"}, {"topk(ratio=0.1)"}, {"topk(ratio=0.1)"}]
    assert [f[1] for f in found] == [{"topk(ratio=0.0625)"}, {"topk(ratio=0.01)"}, {"topk(ratio=0.01)"}]
    assert found[0][2] == 1
    assert not warm.engines[0].steering.state_dict()["sums"]  # nothing is watched, nothing is kept
    assert batch.engines[0].memory.name == "none"


def test_the_batch_controller_compares_means_not_sums():
    team = Team(2, AccordionBatch(factor=4, every=1))
    factors = []
    for steps in (8, 2, 2, 8, 8):  # the batch grows fourfold after the second epoch, and falls with the rate
        for _ in range(steps):
            team.step([torch.ones(LAYOUT.numel)] * 2)
        settings = team.end_epoch(0.1, 0.01 if len(factors) == 2 else 0.1)
        factors.append((settings.batch_factor, settings.rate_factor))
    assert factors == [(1, 1.0), (4, 4.0), (1, 1.0), (1, 1.0), (4, 4.0)]


# ---------------------------------------------------------------- state


def accordion():
    return Accordion("powersgd(rank=4)", "powersgd(rank=1)", every=1, eta=0.3)


def trained(team, steps):
    outs = []
    for step in steps:
        factor = 2.0 if step in (6, 7, 8) else 1.0
        outs.append(team.step([factor * x for x in flats(2, step)])[0])
        if step % 3 == 2:
            team.end_epoch()
    return outs


@pytest.mark.parametrize("at", [3, 4, 5, 7])
def test_a_state_of_the_middle_of_an_epoch_is_continued_bit_for_bit(at, tmp_path):
    whole = Team(2, accordion())
    trained(whole, range(at))
    torch.save(whole.save(), tmp_path / "states.pt")
    rest = trained(whole, range(at, 12))
    resumed = Team(2, accordion())
    resumed.load(*torch.load(tmp_path / "states.pt", weights_only=True))
    assert all(a.equal(b) for a, b in zip(rest, trained(resumed, range(at, 12)), strict=True))
    ours, theirs = (t.engines[1].steering for t in (whole, resumed))
    assert ours.switches == theirs.switches != ()
    assert ours.state_dict()["controller"] == theirs.state_dict()["controller"]
    levels = {s.after for s in ours.switches}
    assert levels == {"powersgd(rank=4)", "powersgd(rank=1)"}


def test_a_saved_state_stays_as_it_is():
    team = Team(2, accordion())
    trained(team, range(4))
    saved = checkpoint.save(team.engines[0])
    sums = {name: tensor.clone() for name, tensor in saved["steering"]["sums"].items()}
    trained(team, range(4, 6))
    assert saved["steering"]["units"][0]["steps"] == 1
    assert all(sums[name].equal(tensor) for name, tensor in saved["steering"]["sums"].items())


def test_another_number_of_workers_goes_on_and_loses_nothing():
    old, new = Team(2, accordion()), Team(3, accordion())
    trained(old, range(7))
    states, rows = old.save()
    new.load([states] * 3, rows)
    assert new.engines[2].steering.specs == old.engines[0].steering.specs
    torch.testing.assert_close(new.owed(), old.owed())
    new.given, new.got = old.given, old.got
    for step in range(3):
        new.step(flats(3, step))
    new.end_epoch()
    new.check_books()


SAVED = "accordion(low='powersgd(rank=4)', high='powersgd(rank=1)', eta=0.3, every=1)"


@pytest.mark.parametrize(
    "saved, running, told",
    [
        (accordion(), None, f"controller {SAVED}, and this run has none"),
        (None, accordion(), f"controller none, and this run has {SAVED}"),
        (
            accordion(),
            AdaQS(("powersgd(rank=4)", "powersgd(rank=8)")),
            f"controller {SAVED}, and this run has adaqs(levels=('powersgd(rank=4)', 'powersgd(rank=8)'))",
        ),
    ],
    ids=["none", "some", "another"],
)
def test_the_state_of_another_controller_is_refused(saved, running, told):
    engines = [Engine("powersgd(rank=4)", controller=controller) for controller in (saved, running)]
    for engine in engines:
        engine.begin(LAYOUT)
    with pytest.raises(gradwire.StateMismatch) as caught:
        checkpoint.load(engines[1], checkpoint.save(engines[0]))
    assert str(caught.value) == (
        f"gradwire: this state was saved under {told}; attach with the saved one, or start without the state"
    )


# ---------------------------------------------------------------- what is refused


def started(**options):
    engine = Engine(None, controller=accordion(), **options)
    engine.begin(Layout.of([("a", (40, 40))]))
    return engine


@pytest.mark.parametrize(
    "call, told",
    [
        (
            lambda: Engine(None),
            "gradwire: pass a codec such as 'topk(ratio=0.01)', or a controller that chooses one",
        ),
        (
            lambda: Engine("topk", controller=accordion()),
            "gradwire: the controller chooses among powersgd, powersgd(rank=1), and codec topk is none of them; "
            "leave it out",
        ),
        (
            lambda: Engine("topk").end_epoch(0.1, 0.1),
            "gradwire: end_epoch is for runs under a controller; pass controller=... to attach",
        ),
        (
            lambda: Engine(None, controller=accordion()).begin(Layout.of([("v", (4000,))])),
            "accordion: there is nothing to choose a codec for, as no parameter is a matrix of 1024 elements or more; "
            "pass tensors='all'",
        ),
        (
            lambda: next(started().reduce(torch.zeros(1, 1600), Layout.of([("b", (40, 40))]))),
            "accordion: was started without 'b', so it chose no codec for it; begin with all parameters that are "
            "compressed, here a",
        ),
        (
            lambda: Engine(None, controller=AccordionBatch()).end_epoch(0.1, 0.1).send(None),
            "accordion_batch: nothing is set yet; call start(parameters) first",
        ),
    ],
)
def test_refusals_are_whole_sentences(call, told):
    with pytest.raises(gradwire.ConfigError) as caught:
        call()
    assert str(caught.value) == told


def test_a_codec_that_does_not_fit_the_others_memory_is_refused():
    with pytest.raises(gradwire.Incompatible, match=r"^signsgd cannot run under error_feedback"):
        Engine(None, controller=Accordion("topk", "signsgd"))


def test_a_codec_among_the_controllers_may_be_given_too():
    assert Engine("powersgd(rank=1)", controller=accordion()).codec == gradwire.codec("powersgd(rank=4)")
