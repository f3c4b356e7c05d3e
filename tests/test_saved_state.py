"""Saved states: whole or refused, of the right format, together with others of their checkpoint, and in their units."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.core.codec import codecs
from gradwire.core.slots import Entry, Piece
from gradwire.engine import Engine
from gradwire.saved_state import FORMAT_VERSION, READ, sealed

SHAPES = {"a": (40, 30), "b": (48, 40)}
CUT = ": it was cut short, or put together from several; load another checkpoint, or start without the state"


def gradients(step, workers=2, scale=1.0):
    normal = torch.Generator().manual_seed(step)
    return {
        name: [scale * torch.randn(shape, generator=normal) for _ in range(workers)] for name, shape in SHAPES.items()
    }


def trained(codec="topk(ratio=0.1)", steps=2, **options):
    cluster = gradwire.VirtualCluster(2, codec, **options)
    for step in range(steps):
        cluster.reduce(gradients(step))
    return cluster


def refused(states, codec="topk(ratio=0.1)", **options):
    cluster = gradwire.VirtualCluster(2, codec, **options)
    with pytest.raises(gradwire.StateMismatch) as caught:
        cluster.load_state_dicts(states)
    assert cluster.engine.step == 0
    return str(caught.value)


def paths(value, before=()):
    """All keys of nested dicts, as paths."""
    for key, inside in value.items():
        yield (*before, key)
        if isinstance(inside, dict):
            yield from paths(inside, (*before, key))


def without(state, path):
    state = copy.deepcopy(state)
    at = state
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return state


SET_UPS = {
    "topk": {"codec": "topk(ratio=0.1)"},
    "powersgd": {"codec": "powersgd(rank=2)"},
    "owners": {"codec": "efsignsgd(block=64)", "strategy": "scatter_reduce_gather"},
    "controller": {"codec": None, "controller": gradwire.Warmup(codec="topk(ratio=0.1)")},
}


@pytest.mark.parametrize("name", SET_UPS)
def test_no_part_of_a_state_can_be_missing(name):
    """A memory that is missing would else be taken for one that owes nothing."""
    first, second = trained(**SET_UPS[name]).state_dicts()
    parts = [path for path in paths(first) if path[0] != "outline"]
    assert len(parts) > 20
    for path in [*parts, ("outline",)]:
        told = refused([without(first, path), second], **SET_UPS[name])
        wanted = "what handle.state_dict() returned was wanted" if path == ("format_version",) else CUT
        assert wanted in told, path


@pytest.mark.parametrize("name", SET_UPS)
def test_a_saved_state_stays_as_it_is_while_training_goes_on(name):
    """Memories and factors alternate between two buffers: what is a view of one is overwritten in the second step."""
    cluster = trained(**SET_UPS[name])
    states = cluster.state_dicts()
    before = copy.deepcopy(states)
    for step in range(2, 5):
        cluster.reduce(gradients(step))
    assert str(states) == str(before)


def test_what_is_missing_or_too_much_is_named():
    first, second = trained().state_dicts()
    assert (
        refused([without(first, ("state", "error", "a")), second])
        == f"gradwire: this state has no 'state/error/a'{CUT}"
    )
    assert refused([without(first, ("scale",)), second]) == f"gradwire: this state has no 'scale'{CUT}"
    more = copy.deepcopy(first)
    more["state"]["error"]["c"] = more["state"]["error"]["a"]
    assert refused([more, second]) == f"gradwire: this state has 'state/error/c', which was not saved with it{CUT}"
    short = copy.deepcopy(first)
    short["state"]["error"]["b"]["tensor"] = short["state"]["error"]["b"]["tensor"][:7]
    assert refused([short, second]) == (
        f"gradwire: this state has something of size [7] as 'state/error/b/tensor', and something of size [1920] was "
        f"saved{CUT}"
    )


def test_states_of_different_checkpoints_are_not_put_together():
    early, late = trained(steps=2).state_dicts(), trained(steps=3).state_dicts()
    assert refused([early[0], late[1]]) == (
        "gradwire: these states were not saved together: 'step' is 2 in that of rank 0, and 3 in that of rank 1; load "
        "those of one checkpoint"
    )
    other = trained(seed=7).state_dicts()
    assert "'seed' is 0 in that of rank 0, and 7 in that of rank 1" in refused([early[0], other[1]])


def older(state):
    """As format 2 wrote it."""
    return {key: value for key, value in state.items() if key != "outline"} | {"format_version": 2}


def test_the_format_before_is_read():
    whole, resumed = trained(), gradwire.VirtualCluster(2, "topk(ratio=0.1)")
    resumed.load_state_dicts([older(state) for state in whole.state_dicts()])
    a, b = whole.reduce(gradients(2)), resumed.reduce(gradients(2))
    assert all(a[name].equal(b[name]) for name in a)


@pytest.mark.parametrize(
    "version, advice", [(1, "finish that run with"), (FORMAT_VERSION + 1, "install"), ("2", "finish")]
)
def test_other_formats_are_refused_with_advice(version, advice):
    states = [state | {"format_version": version} for state in trained().state_dicts()]
    told = refused(states)
    assert f"this state has format {version!r}, and this version reads {READ[0]} and {READ[1]}; {advice}" in told
    assert told.endswith("or start without the state")


@pytest.mark.parametrize("thing", [{"model": 1}, "a path", 3], ids=str)
def test_what_is_no_state_is_refused(thing):
    assert refused([thing]).startswith("gradwire: what handle.state_dict() returned was wanted, and this ")


@pytest.mark.parametrize("codec", codecs.names())
def test_weights_only_suffices_for_every_codec(codec):
    """And the state comes back as it was: whatever else a codec kept would be lost."""
    for state in trained(codec).state_dicts():
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        back = torch.load(file, weights_only=True)
        assert back["outline"] == state["outline"] == sealed(back)["outline"]


def test_a_resumed_run_draws_and_counts_as_the_saved_one():
    """Attached with another seed: that of the state is what the ranks have agreed on."""
    whole, resumed = gradwire.VirtualCluster(2, "qsgd", seed=3), gradwire.VirtualCluster(2, "qsgd", seed=4)
    whole.reduce(gradients(0))
    bad = gradients(1)
    bad["a"][1][2, 3] = torch.nan
    whole.reduce(bad)
    resumed.load_state_dicts(whole.state_dicts())
    assert (resumed.engine.step, resumed.engine.skipped_steps) == (2, 1)
    for step in (2, 3):
        a, b = whole.reduce(gradients(step)), resumed.reduce(gradients(step))
        assert all(a[name].equal(b[name]) for name in a)


# ---------------------------------------------------------------- units of the loss scale

MEMORIES = [
    {"memory": "error_feedback"},
    {"memory": "error_feedback(beta=0.5)"},
    {"memory": "error_feedback(bits=8)"},
    {"memory": "error_feedback", "strategy": "scatter_reduce_gather"},
    {"memory": "momentum_correction(momentum=0.5)"},
    {"memory": "momentum_correction(momentum=0.5, nesterov=True)"},
]
SCALES = [1024.0, 1024.0, 256.0, 256.0, 4096.0, 1.0]  # powers of two: nothing rounds


def scaled_steps(cluster, steps):
    """Results in units of the unscaled gradient, and where they were."""
    found = []
    for step in steps:
        cluster.engine.begin_step(SCALES[step])
        found.append({n: g / SCALES[step] for n, g in cluster.reduce(gradients(step, scale=SCALES[step])).items()})
    return found


@pytest.mark.parametrize("options", MEMORIES, ids=lambda options: "-".join(options.values()))
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_a_loaded_state_keeps_its_units_and_gives_them_up_with_the_next_step(options, at):
    """Saved under one loss scale and continued under another, it owes what an unscaled run owes."""
    unscaled = gradwire.VirtualCluster(2, "topk(ratio=0.1)", **options)
    wanted = [unscaled.reduce(gradients(step)) for step in range(len(SCALES))]
    first, second = (gradwire.VirtualCluster(2, "topk(ratio=0.1)", **options) for _ in range(2))
    found = scaled_steps(first, range(at))
    states = first.state_dicts()
    assert states[0]["scale"] == SCALES[at - 1]
    second.load_state_dicts(states)
    found += scaled_steps(second, range(at, len(SCALES)))
    for a, b in zip(wanted, found, strict=True):
        assert all(a[name].equal(b[name]) for name in a)


def test_what_moves_to_another_owner_changes_its_units_on_the_way():
    """The units of a step become others when buckets are rebuilt: what an owner owes is then repaid by a worker."""

    def run(scales):
        cluster, found = gradwire.VirtualCluster(3, "topk(ratio=0.1)", strategy="scatter_reduce_gather"), []
        for step, units in enumerate([[["a"], ["b"]], [["a"], ["b"]], [["b", "a"]], [["b", "a"]], [["b"], ["a"]]]):
            cluster.engine.begin_step(scales[step])
            results = cluster.reduce(gradients(step, 3, scales[step]), units=units)
            found.append({name: result / scales[step] for name, result in results.items()})
        return found

    for plain, scaled in zip(run([1.0] * 5), run(SCALES[1:]), strict=True):
        assert all(plain[name].equal(scaled[name]) for name in plain)


def test_a_skipped_step_does_not_change_the_units():
    cluster = gradwire.VirtualCluster(2, "topk(ratio=0.1)")
    scaled_steps(cluster, range(1))
    cluster.engine.begin_step(64.0)
    bad = gradients(1, scale=64.0)
    bad["a"][0][0, 0] = torch.inf
    cluster.reduce(bad)
    assert cluster.state_dicts()[0]["scale"] == SCALES[0]
    assert cluster.state_dicts()[0]["skipped_steps"] == 1


def test_pieces_of_one_parameter_are_saved_as_one_with_zeros_between():
    pieces = [
        Piece(row, "a", Entry(torch.tensor(values), start))
        for row, values, start in ((0, [5.0], 6), (0, [1.0, 2.0], 2), (1, [7.0], 0))
    ]
    (kept,) = checkpoint._joined(pieces, 0).values()
    assert (kept["tensor"].tolist(), kept["start"]) == ([1, 2, 0, 0, 5], 2)


def test_what_owners_alone_owe_goes_to_one_worker_of_another_number():
    """It counts fully in the mean, so each other worker that had it would repay it once more."""
    options = {"codec": "qsgd", "strategy": "scatter_reduce_gather(owner_memory=True)"}
    states = trained(**options).state_dicts()
    first, other = (checkpoint.averaged(states, which)["state"] for which in (True, False))
    for name, shape in SHAPES.items():
        pieces = [state["state"]["owner_error"].get(name) for state in states]
        total = torch.zeros(shape).view(-1)
        for piece in filter(None, pieces):
            total[piece["start"] : piece["start"] + piece["tensor"].numel()] += piece["tensor"].view(-1)
        assert first["owner_error"][name]["tensor"].equal(total)
        assert bool(total.any())
    assert not other


def test_an_engine_saves_what_it_belongs_to():
    state = checkpoint.save(Engine("topk", ranks=(1,), workers=4))
    about = {key: state[key] for key in ("format_version", "codec", "memory", "rank", "workers", "per_node")}
    wanted = {"codec": "topk", "memory": "error_feedback", "rank": 1, "workers": 4, "per_node": 1}
    assert about == {"format_version": FORMAT_VERSION} | wanted
