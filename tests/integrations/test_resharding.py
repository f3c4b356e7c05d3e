"""Sharded models on another mesh: what is owed goes with them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Pool
from test_fsdp import REPLICAS, SCATTER, Net, sharded, train, whole

import gradwire
from gradwire.core.layout import Layout, Segment
from gradwire.integrations.dcp import RankState
from gradwire.integrations.fsdp_parts import Parameter
from gradwire.integrations.resharding import resharded
from gradwire.saved_state import sealed

pytestmark = pytest.mark.dist
CODEC = "topk(ratio=0.1)"
OPTIONS = {"tensors": "all"}
SIZES = {name: p.numel() for name, p in Net().named_parameters()}


def trained(rank, place, folder=None, options=OPTIONS, codec=CODEC):
    model, handle = sharded(codec, place, **options)
    train(model, rank, range(3))
    if folder is not None:
        dcp.save({"gradwire": RankState(handle)}, checkpoint_id=folder)
    return handle.state_dict()


def moved(rank, place, states, folder=None, options=OPTIONS, codec=CODEC):
    """Load, save again, and go on."""
    model, handle = sharded(codec, place, **options)
    if folder is not None:
        dcp.load({"gradwire": RankState(handle, saved_by=states)}, checkpoint_id=folder)
    else:
        handle.load_state_dict(states)
    state = handle.state_dict()
    train(model, rank, range(3, 5))
    return state, whole(model), handle.stats()["steps"]


def owed(states):
    """What the model is owed: the mean over those who average, parameter by parameter."""
    total = {name: torch.zeros(2 * size) for name, size in SIZES.items()}  # room for padding
    for state in states:
        for name, kept in state["state"]["error"].items():
            total[name][kept["start"] : kept["start"] + len(kept["tensor"])] += kept["tensor"] / state["workers"]
    return {name: found[: SIZES[name]] for name, found in total.items()}


@pytest.mark.parametrize(
    "places",
    [
        ((SCATTER, 2), (SCATTER, 4), (SCATTER, 2)),
        ((REPLICAS, 4), (SCATTER, 4), (REPLICAS, 4)),
        ((REPLICAS, 4), (REPLICAS, 2)),
    ],
    ids=lambda places: " to ".join(f"{place} of {world}" for place, world in places),
)
def test_a_changed_mesh_owes_the_same(pool: Pool, places):
    states = pool.run(places[0][1], trained, places[0][0])
    wanted = owed(states)
    assert all(float(found.norm()) > 0 for found in wanted.values())
    for place, world in places[1:]:
        found = pool.run(world, moved, place, states)
        states = [state for state, _, _ in found]
        for name, now in owed(states).items():
            assert torch.allclose(now, wanted[name], atol=1e-6), name
        assert all(torch.equal(weights, found[0][1]) for _, weights, _ in found)
        assert found[0][2] == 5
        assert [s["shard"][1] for s in states] == [world if place == SCATTER else world // 2] * world


def test_distributed_checkpoints_go_to_another_mesh(pool: Pool, tmp_path):
    before = pool.run(2, trained, SCATTER, str(tmp_path))
    after = [state for state, _, _ in pool.run(4, moved, SCATTER, 2, str(tmp_path))]
    wanted = owed(before)
    for name, now in owed(after).items():
        assert torch.allclose(now, wanted[name], atol=1e-6)


def refusals(rank, states):
    def message(state, place=SCATTER, codec=CODEC, **options):
        _, handle = sharded(codec, place, **(OPTIONS | options))
        with pytest.raises(gradwire.StateMismatch) as problem:
            handle.load_state_dict(state)
        return str(problem.value)

    plain = sealed({key: value for key, value in states[0].items() if key not in ("place", "shard")})
    halves = {"policy": torch.distributed.fsdp.MixedPrecisionPolicy(reduce_dtype=torch.float16)}
    return {
        "one of two": message(states[0]),
        "lost": message(states[1:]),
        "codec": message(states, codec="efsignsgd"),
        "memory": message(states, memory="none"),
        "not sharded": message([plain]),
        "vectors": message(states, REPLICAS, tensors="matrices"),
        "float16": message(states, **halves),
    }


def test_what_cannot_be_taken_over_is_refused_with_the_reason(pool: Pool):
    told = pool.run(4, refusals, pool.run(2, trained, SCATTER))[3]
    assert told["one of two"] == (
        "gradwire: this state was saved by shard 0 of 2, with a codec in the reduce-scatter, and this rank is shard 3 "
        "of 4, with a codec in the reduce-scatter. Load this rank's own, or, after a change of the mesh, pass the list "
        "of all 2 ranks' state dicts (with DCP: RankState(handle, saved_by=2))."
    )
    assert told["lost"].startswith("gradwire: this state was saved by shard 1 of 2, with a codec in the reduce-scatter")
    assert told["codec"].startswith("gradwire: this state belongs to topk(ratio=0.1) with memory error_feedback, and ")
    assert told["memory"].startswith("gradwire: this state belongs to topk(ratio=0.1) with memory error_feedback, and ")
    assert told["not sharded"] == (
        "gradwire: this state was saved by a model that was not sharded, and this one is; start without it"
    )
    assert told["vectors"].endswith("in this run it travels as it is, so that would be lost; attach with tensors='all'")
    assert told["float16"].startswith("gradwire: gradients in float16, and those with a divide factor or forced sums,")


def test_a_parameter_that_is_cut_along_another_dimension_is_put_together_along_it():
    """Four columns: two ranks hold two each, four ranks one each."""
    matrix = torch.arange(12.0).view(3, 4)

    def flat(shards):
        return torch.cat([chunk.flatten() for chunk in matrix.chunk(shards, 1)])

    def at(rank, workers):
        return {"place": "reduce-scatter", "shard": [rank, workers], "rank": rank, "workers": workers}

    error = {"error": {"w": {"tensor": flat(2), "start": 0}}}
    states = [{**at(rank, 2), "state": error, "common": {}, "per_node": 1} for rank in range(2)]
    layout = Layout(tuple(Segment("w", (3, 1), 3 * rank) for rank in range(4)))
    found = resharded(states, at(1, 4), [layout], {"w": Parameter((3, 4), 1)})
    assert torch.equal(found["state"]["error"]["w"]["tensor"], flat(4))
    assert found["rank"] == 1


def test_a_momentum_stays_where_it_was():
    """Between replicas it is of a shard's mean, in the reduce-scatter of one rank's gradient."""
    momentum = {"momentum": {"w": {"tensor": torch.ones(4), "start": 0}}}
    saved = {"place": REPLICAS, "shard": [0, 1], "rank": 0, "workers": 1, "state": momentum, "common": {}}
    here = {"place": SCATTER, "shard": [0, 1], "rank": 0, "workers": 1}
    with pytest.raises(
        gradwire.StateMismatch, match="holds 'momentum' of 'w', which has no meaning in the reduce-scatter"
    ):
        resharded([saved], here, [Layout.of([("w", (4,))])], {"w": Parameter((4,), 0)})
