"""State by parameter name: flat on the hot path, whole transactions, pieces that follow their elements."""

from __future__ import annotations

import torch

from gradwire.core.layout import Layout, Segment
from gradwire.core.state import Entry, Store, Transaction

AB = Layout.of([("a", (2, 2)), ("b", (3,))])
BA = Layout.of([("b", (3,)), ("a", (2, 2))])
TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def stored():
    store = Store()
    store.put_flat("error", AB, torch.arange(7.0))
    return store


def test_flat_is_not_copied_while_the_layout_stays():
    store, flat = Store(), torch.arange(7.0)
    store.put_flat("error", AB, flat)
    assert store.flat("error", AB) is flat
    assert store.get("error", "b").tensor.tolist() == [4.0, 5.0, 6.0]


def test_a_new_layout_is_assembled_by_name():
    assert stored().flat("error", BA).tolist() == [4, 5, 6, 0, 1, 2, 3]
    assert stored().flat("error", Layout.of([("c", (2,)), ("a", (2, 2))])).tolist() == [0, 0, 0, 1, 2, 3]
    assert stored().flat("error", Layout.of([("c", (2,))])) is None


def test_an_old_layout_does_not_come_back_after_a_new_one_was_written():
    store = stored()
    store.put_flat("error", BA, torch.arange(10.0, 17.0))
    assert store.flat("error", AB).tolist() == [13, 14, 15, 16, 10, 11, 12]


def test_writes_are_seen_after_commit_alone():
    store = stored()
    step = Transaction(store)
    step.put_flat("error", AB, torch.zeros(7))
    step.put("q", "a", torch.ones(2))
    assert step.flat("error", AB).tolist() == list(range(7))
    step.commit(FALSE)
    assert store.flat("error", AB).tolist() == list(range(7))
    assert store.get("q", "a") is None
    step.put_flat("error", AB, torch.zeros(7))
    step.commit(TRUE)
    assert store.flat("error", AB).tolist() == [0] * 7


def test_cut_and_outside_account_for_every_element():
    held = AB.cut(3, 6)
    assert held.segments == (Segment("a", (1,), 3), Segment("b", (2,), 0))
    store = Store()
    store.put_flat("owner", held, torch.tensor([1.0, 2.0, 3.0]))
    moved = store.outside("owner", AB, AB.cut(5, 7))
    assert [(s.name, s.start, t.tolist()) for s, t in moved] == [("a", 3, [1.0]), ("b", 0, [2.0])]
    assert store.flat("owner", AB.cut(5, 7)).tolist() == [3.0, 0.0]
    assert store.outside("owner", AB, held) == []
    assert [(s.start, t.tolist()) for s, t in store.outside("owner", AB, Layout(()))] == [(3, [1.0]), (0, [2.0, 3.0])]


def test_forgetting():
    store = stored()
    step = Transaction(store)
    step.forget("error", "a")
    step.commit(TRUE)
    assert store.flat("error", AB).tolist() == [0, 0, 0, 0, 4, 5, 6]
    store.put("error", "b", Entry(torch.ones(3)))
    assert store.flat("error", AB).tolist() == [0, 0, 0, 0, 1, 1, 1]
