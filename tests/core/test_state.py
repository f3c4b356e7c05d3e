"""State by parameter name: flat on the hot path, whole transactions, pieces that follow their elements."""

from __future__ import annotations

import torch

from gradwire.core.layout import Layout, Segment
from gradwire.core.slots import Entry, Piece
from gradwire.core.state import Store, Transaction, _select

AB = Layout.of([("a", (2, 2)), ("b", (3,))])
BA = Layout.of([("b", (3,)), ("a", (2, 2))])
TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def put(store, layout, flat, kind="error"):
    """Keep the rows of `flat`."""
    step = Transaction(store, len(flat))
    step.put_flat(kind, layout, flat)
    step.commit(TRUE)


def stored():
    """What two workers keep."""
    store = Store()
    put(store, AB, torch.stack([torch.arange(7.0), torch.arange(20.0, 27.0)]))
    return store


def flat(store, layout, kind="error"):
    kept = Transaction(store, 2).flat(kind, layout)
    return None if kept is None else kept.tolist()


def loose(store, kind):
    return [(p.row, p.name, p.entry.start, p.entry.tensor.tolist()) for p in store.loose(kind)]


def test_flat_is_not_copied_while_the_layout_stays():
    store, rows = Store(), torch.stack([torch.arange(7.0), torch.arange(20.0, 27.0)])
    put(store, AB, rows)
    assert Transaction(store, 2).flat("error", AB) is rows
    assert store.get("error", "b").tensor.tolist() == [4.0, 5.0, 6.0]
    assert store.get("error", "b", row=1).tensor.tolist() == [24.0, 25.0, 26.0]
    assert store.get("error", "c") is None
    assert store.get("error", "b", row=2) is None


def test_a_new_layout_is_assembled_by_name():
    assert flat(stored(), BA) == [[4, 5, 6, 0, 1, 2, 3], [24, 25, 26, 20, 21, 22, 23]]
    ca = Layout.of([("c", (2,)), ("a", (2, 2))])
    assert flat(stored(), ca) == [[0, 0, 0, 1, 2, 3], [0, 0, 20, 21, 22, 23]]
    assert flat(stored(), Layout.of([("c", (2,))])) is None


def test_what_a_new_layout_leaves_out_is_still_kept():
    store = stored()
    assert flat(store, Layout.of([("a", (2, 2))])) == [[0, 1, 2, 3], [20, 21, 22, 23]]
    assert loose(store, "error") == [(0, "b", 0, [4, 5, 6]), (1, "b", 0, [24, 25, 26])]
    assert store.get("error", "b", row=1).tensor.tolist() == [24.0, 25.0, 26.0]
    assert flat(store, AB) == [[0, 1, 2, 3, 4, 5, 6], [20, 21, 22, 23, 24, 25, 26]]
    assert loose(store, "error") == []


def test_an_old_layout_does_not_come_back_after_a_new_one_was_written():
    store = stored()
    put(store, BA, torch.stack([torch.arange(10.0, 17.0), torch.arange(30.0, 37.0)]))
    assert flat(store, AB) == [[13, 14, 15, 16, 10, 11, 12], [33, 34, 35, 36, 30, 31, 32]]


def test_writes_are_seen_after_commit_alone():
    store = stored()
    before = flat(store, AB)
    step = Transaction(store, 2)
    slot = step.slot("error", AB)
    assert step.written(slot) is None
    step.put_flat("error", AB, torch.zeros(2, 7))
    step.put("q", "a", torch.ones(2))
    assert step.written(slot).tolist() == [[0] * 7] * 2
    assert step.flat("error", AB).tolist() == before
    assert step.get("q", "a") is None
    step.commit(FALSE)
    assert step.written(slot) is None
    assert flat(store, AB) == before
    assert store.get("q", "a") is None
    step.put_flat("error", AB, torch.zeros(2, 7))
    step.put("q", "a", torch.ones(2))
    step.commit(TRUE)
    assert flat(store, AB) == [[0] * 7] * 2
    assert step.get("q", "a").tolist() == [1, 1]


def test_nothing_of_a_skipped_step_reaches_the_next():
    """One transaction for both, as a driver may have it that tries again."""
    store, piece = stored(), Piece(0, "c", Entry(torch.tensor([1.0])))
    before = flat(store, AB)
    store.put_piece("owner", piece)
    step = Transaction(store, 2)
    step.put_flat("error", AB, torch.zeros(2, 7))
    step.put("q", "a", torch.ones(2))
    step.repaid("owner", piece)
    step.commit(FALSE)
    step.commit(TRUE)
    assert flat(store, AB) == before
    assert store.get("q", "a") is None
    assert loose(store, "owner") == [(0, "c", 0, [1.0])]


def test_where_a_device_decides_a_bad_step_leaves_matrices_as_they_were():
    """The host does not know whether it was good: what is kept is a choice of numbers, without a wait."""
    old, new, wide = (Entry(torch.tensor(values)) for values in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0, 7.0]))
    for kept, written, good, bad in (
        (old, new, [3.0, 4.0], [1.0, 2.0]),
        (old, None, [0.0, 0.0], [1.0, 2.0]),  # forgotten: zeros, since something has to be there
        (None, new, [3.0, 4.0], [0.0, 0.0]),
        (old, wide, [5.0, 6.0, 7.0], [0.0, 0.0, 0.0]),
    ):
        assert _select(TRUE, kept, written).tensor.tolist() == good
        assert _select(FALSE, kept, written).tensor.tolist() == bad
    assert _select(TRUE, None, None) is None


def test_a_store_that_is_replaced_keeps_nothing_of_its_own():
    store, other = stored(), Store()
    store.common("q", FACTORS, HOST, drawn)
    store.put_piece("owner", Piece(0, "c", Entry(torch.tensor([1.0]))))
    store.put("alone", "a", Entry(torch.ones(2)))
    before = store.changes
    store.replace(other)
    assert not store.kinds
    assert not store.named
    assert store.changes > before


def test_what_workers_keep_is_forgotten_and_what_all_have_alike_stays():
    store = stored()
    store.common("q", FACTORS, HOST, drawn)
    store.put_piece("error", Piece(0, "c", Entry(torch.tensor([1.0]))))
    store.forget_own()
    assert not store.kinds
    assert store.pieces("error") == []
    assert store.get("q", "a").tensor.tolist() == [[9, 9], [9, 9]]


def test_a_step_writes_beside_what_is_kept():
    """Two buffers that take turns: what is being written is never what is read, and nothing new is allocated."""
    store = stored()
    slot = store.slot("error", (AB, AB), 7)
    seen = []
    for value in (1.0, 2.0, 3.0):
        step, spare = Transaction(store, 2), slot.spare(torch.device("cpu"))
        assert spare is not slot.current
        step.write(slot, spare).fill_(value)
        step.commit(TRUE)
        assert slot.current is spare
        seen.append(spare.data_ptr())
    assert seen[0] == seen[2] != seen[1]
    dropped = Transaction(store, 2)
    dropped.write(slot, slot.spare(torch.device("cpu"))).fill_(4.0)
    dropped.commit(FALSE)
    assert flat(store, AB) == [[3] * 7] * 2


def test_cut_and_what_lies_outside_account_for_every_element():
    """Owners keep a piece each; when the pieces move, what is in none of the new ones is left over."""
    held = AB.cut(3, 6)
    assert held.segments == (Segment("a", (1,), 3), Segment("b", (2,), 0))
    store = Store()
    put(store, held, torch.tensor([[1.0, 2.0, 3.0]]), "owner")
    assert store.slot("owner", (held,), 3).current.tolist() == [[1.0, 2.0, 3.0]]
    assert loose(store, "owner") == []
    moved = store.slot("owner", (AB.cut(5, 7),), 2)
    assert moved.current.tolist() == [[3.0, 0.0]]
    assert loose(store, "owner") == [(0, "a", 3, [1.0]), (0, "b", 0, [2.0])]
    store.dissolve("owner", AB)
    assert sorted(loose(store, "owner")) == [(0, "a", 3, [1.0]), (0, "b", 0, [2.0]), (0, "b", 1, [3.0, 0.0])]
    store.slot("owner", (held,), 3)
    assert store.slot("owner", (held,), 3).current.tolist() == [[1.0, 2.0, 3.0]]
    assert loose(store, "owner") == [(0, "b", 2, [0.0])]


def test_owners_have_layouts_of_their_own_and_pieces_stay_with_their_row():
    layouts = (AB.cut(0, 4), AB.cut(4, 7))
    store = Store()
    step = Transaction(store, 2)
    slot = store.slot("owner", layouts, 4)
    step.write(slot, torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 0.0]]))
    step.commit(TRUE)
    assert [(p.row, p.name, p.entry.tensor.tolist()) for p in store.pieces("owner")] == [
        (0, "a", [1, 2, 3, 4]),
        (1, "b", [5, 6, 7]),
    ]
    turned = store.slot("owner", layouts[::-1], 4)  # what a worker owned does not move to another
    assert turned.current is None
    assert [(p.row, p.name) for p in store.loose("owner")] == [(0, "a"), (1, "b")]


def test_what_went_into_the_gradient_is_dropped_once_the_step_is_committed():
    for finite, left in ((FALSE, [(0, "a", 3, [1.0])]), (TRUE, [])):
        store, piece = Store(), Piece(0, "a", Entry(torch.tensor([1.0]), 3))
        store.put_piece("owner", piece)
        step = Transaction(store)
        step.repaid("owner", piece)
        assert loose(store, "owner") == [(0, "a", 3, [1.0])]
        step.commit(finite)
        assert loose(store, "owner") == left


def test_of_a_unit_only_the_own_pieces_stay_if_others_keep_the_rest():
    store = stored()
    store.put("q", "a", Entry(torch.ones(2)))
    store.put("q", "b", Entry(torch.ones(3)))
    store.put_piece("error", Piece(0, "other", Entry(torch.tensor([9.0]))))
    store.restrict(AB, AB.cut(4, 6))
    assert loose(store, "error") == [(0, "b", 0, [4, 5]), (1, "b", 0, [24, 25]), (0, "other", 0, [9])]
    assert store.get("q", "a") is None
    assert store.get("q", "b").tensor.tolist() == [1, 1, 1]


def test_forgetting():
    store = stored()
    for name, numel in (("a", 2), ("b", 3)):
        store.put("q", name, Entry(torch.ones(numel)))
    step = Transaction(store, 2)
    step.forget("q", "a")
    assert step.get("q", "a").tolist() == [1, 1]
    step.commit(FALSE)
    assert store.get("q", "a").tensor.tolist() == [1, 1]
    step.forget("q", "a")
    step.commit(TRUE)
    assert store.get("q", "a") is None
    assert store.get("q", "b", row=1).tensor.tolist() == [1, 1, 1]  # all workers have it alike
    assert store.kinds == {"error"}
    assert flat(store, AB) == [[0, 1, 2, 3, 4, 5, 6], [20, 21, 22, 23, 24, 25, 26]]


FACTORS = Layout.of([("a", (2, 2)), ("b", (3, 1))])
HOST = torch.device("cpu")


def drawn(segment):
    return torch.full(segment.shape, 9.0)


def kept_in_common(store, flat, layout=FACTORS):
    """Keep what all workers have alike; returns where."""
    step = Transaction(store, 2)
    common = step.common("q", layout, HOST, drawn)
    step.write(common, torch.tensor([flat]))
    step.commit(TRUE)
    return common


def test_matrices_in_common_are_seen_by_parameter():
    store = Store()
    common = store.common("q", FACTORS, HOST, drawn)
    assert common.current.tolist() == [[9.0] * 7]
    kept_in_common(store, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert store.get("q", "a", row=1).tensor.tolist() == [[1, 3], [2, 4]]  # column by column
    assert Transaction(store).get("q", "b").tolist() == [[5], [6], [7]]
    assert {name: e.tensor.tolist() for name, e in store.named["q"].items()} == {
        "a": [[1, 3], [2, 4]],
        "b": [[5], [6], [7]],
    }
    assert store.get("q", "c") is None
    assert not store.kinds  # they are nobody's own


def test_matrices_in_common_follow_their_parameter_unless_their_shape_changes():
    store = Store()
    store.put("q", "a", Entry(torch.tensor([[1.0, 3.0], [2.0, 4.0]])))
    assert store.common("q", FACTORS, HOST, drawn).current.tolist() == [[1, 2, 3, 4, 9, 9, 9]]
    kept_in_common(store, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    other = Layout.of([("c", (1, 1)), ("b", (3, 1)), ("a", (1, 2))])
    assert store.common("q", other, HOST, drawn).current.tolist() == [[9, 5, 6, 7, 9, 9]]
    assert store.common("q", FACTORS, HOST, drawn).current.tolist() == [[9, 9, 9, 9, 5, 6, 7]]
    assert store.get("q", "c").tensor.tolist() == [[9]]  # left behind, and still kept
    store.put("q", "b", Entry(torch.ones(3, 1)))
    assert store.common("q", FACTORS, HOST, drawn).current.tolist() == [[9, 9, 9, 9, 1, 1, 1]]
    store.restrict(FACTORS, Layout.of([("b", (3, 1))]))
    assert store.get("q", "a") is None
    assert store.get("q", "b").tensor.tolist() == [[1]] * 3


def test_matrices_in_common_have_two_buffers_that_take_turns():
    store, seen = Store(), []
    common = store.common("q", FACTORS, HOST, drawn)
    for finite, value in ((TRUE, 1.0), (FALSE, 2.0), (TRUE, 3.0), (TRUE, 4.0)):
        step, before = Transaction(store), common.current.clone()
        spare = step.write(common, common.spare(HOST)).fill_(value)
        assert spare.data_ptr() != common.current.data_ptr()
        step.commit(finite)
        assert step.common("q", FACTORS, HOST, drawn) is common
        assert common.current.equal(spare if finite else before)
        seen.append(common.current.data_ptr())
    assert seen == [seen[0], seen[0], seen[2], seen[0]]
    assert seen[2] != seen[0]


def test_what_lies_elsewhere_is_told_of_good_steps_alone():
    told, writes = [], Transaction(Store())
    writes.then(lambda: told.append("bad"))
    writes.commit(torch.tensor(False))
    writes.then(lambda: told.append("good"))
    assert not writes.slots_only  # so it is never captured in a graph
    writes.commit(torch.tensor(True))
    writes.commit(torch.tensor(True))
    assert told == ["good"]
