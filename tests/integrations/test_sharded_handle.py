"""The handle of a sharded model: what it tells before, during and after a training."""

from __future__ import annotations

import warnings

import pytest
import torch
from ranks import Pool
from test_fsdp import REPLICAS, SCATTER, STEPS, sharded, train

pytestmark = pytest.mark.dist
CODEC = "blockint(bits=4)"
MEMORIES = {"off": "none", "8 bits": "error_feedback(bits=8)", "full": "error_feedback"}


def allocated(handle):
    """Bytes of all that is kept from step to step."""
    slots = [slot for kind in handle.engine.store._slots.values() for slot in kind.values()]
    return sum(t.nbytes for slot in slots for t in (slot.current, slot._spare))


def told(rank, place):
    found = {}
    for name, memory in MEMORIES.items():
        _, dry = sharded(CODEC, place, memory=memory, dry_run=True)
        model, handle = sharded(CODEC, place, memory=memory)
        train(model, rank, range(3))
        seen = handle.stats()["sent_bytes_per_step"], allocated(handle), sum(one.sent_bytes for one in handle.layers())
        found[name] = dry, *seen, repr(handle), [(one.name, one.elements) for one in handle.layers()]
    return found


@pytest.mark.parametrize("place, world", [(SCATTER, 2), (REPLICAS, 4)])
def test_bytes_are_told_beforehand_for_a_memory_that_is_off_in_8_bits_or_full(pool: Pool, place, world):
    found = pool.run(world, told, place, deadline=150.0)[0]
    for dry, sent, kept, in_layers, _, _ in found.values():
        assert dry.sent_bytes == sent
        assert dry.kept_bytes == kept
        assert in_layers == pytest.approx(sent, rel=0.01)  # flags of a step are nobody's
        assert dry.ratio > 3.5
    dry = found["full"][0]
    compressed = sum(unit.compressed for unit in dry.units)
    assert found["off"][0].kept_bytes == 0
    assert dry.kept_bytes == 8 * compressed
    assert 2 * compressed < found["8 bits"][0].kept_bytes < 2.1 * compressed
    assert f"mode {place}, 2 ranks" in str(dry)
    assert "times less than plain FSDP2" in str(dry)
    shown = found["8 bits"][4].splitlines()
    assert shown[0] == (f"gradwire.Handle: blockint, memory error_feedback(bits=8), strategy auto, mode {place}")
    assert shown[1].startswith("  2 ranks, 3 steps; 10 tensors of ")
    assert shown[1].endswith("elements, in 2 units")
    assert shown[2].endswith("times less than plain FSDP2")
    names = [name for name, _ in found["full"][5]]
    assert names[:2] == ["first.weight", "first.bias"]
    assert len(names) == 10


def watched(rank, place):
    model, handle = sharded("topk(ratio=0.1)", place, check=4)
    told = {}
    handle.watch(every=5, log=False, tracker=lambda step, values: told.update({step: values}))
    train(model, rank)
    stats = handle.stats()
    handle.detach()
    with pytest.raises(Exception, match="not attached any more"):
        handle.watch()
    return told, stats


@pytest.mark.parametrize("place, world", [(SCATTER, 2), (REPLICAS, 4)])
def test_one_rank_tells_what_is_sent_and_checks_find_nothing(pool: Pool, place, world):
    found = pool.run(world, watched, place)
    # what is left is told at the end; the last step is not, as no other has begun after it
    assert [sorted(told) for told, _ in found] == [[10, STEPS - 1], *([] for _ in range(world - 1))]
    values, stats = found[0][0][10], found[0][1]
    assert values["gradwire/sent_bytes_per_step"] == pytest.approx(
        stats["sent_bytes_per_step"], rel=0.01 if place == SCATTER else 0.25
    )  # between replicas checked steps send the whole gradient, too
    assert values["gradwire/compression_ratio"] > 2
    assert values["gradwire/residual_norm"] > 0
    checks = stats["checks"]
    assert (checks["steps"], checks["warnings"]) == (3, {})
    assert 0 < checks["owed"] < checks["bound"]
    assert (checks["error"] is None) == (place == SCATTER)


def drifted(rank):
    model, _ = sharded("none", REPLICAS, check=1)
    with torch.no_grad():
        next(model.parameters()).to_local()[0, 0] += rank // 2
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, rank, range(1))
    return [str(w.message) for w in caught if "gradwire check" in str(w.message)]


def test_replicas_of_a_shard_that_differ_are_found(pool: Pool):
    told = pool.run(4, drifted)[0]
    assert len(told) == 1
    assert told[0].startswith("gradwire check, step 0: rank 1 has another 'first.weight' than most ranks (1 of 10")
