"""Strategies on a real, shaped network: the bytes counted are those on the wire, the arithmetic is what we claim."""

from __future__ import annotations

import json

import pytest

from gradwire.cli import main
from gradwire.core.errors import Incompatible
from gradwire.laboratory.bench import collective
from gradwire.laboratory.hosts.namespace import missing

pytestmark = [pytest.mark.dist, pytest.mark.skipif(missing() is not None, reason=str(missing()))]

PAIRS = (
    ("none", "all_reduce"),
    ("fp16", "all_reduce"),
    ("signsgd", "all_gather"),
    ("signsgd", "scatter_reduce_gather"),
    ("powersgd(rank=2)", "auto"),  # its own rounds
    ("gtopk(ratio=0.1)", "auto"),  # routes
    ("adaptivethreshold", "all_gather"),  # sizes that depend on the data
)
ELEMENTS = 1 << 18


@pytest.fixture(scope="module")
def measured():
    """Four hosts and two, each pair three times."""
    sweep = collective.sweep(pairs=PAIRS, sizes=(ELEMENTS,), hosts=(2, 4), rates=("100mbit",), repeats=2)
    return {(r.what["codec"], r.what["strategy"], r.what["hosts"]): r for r in sweep.run()}


def test_counted_bytes_are_those_of_the_interface_but_for_framing(measured):
    """Headers and acknowledgements: at most 7 % of the bytes, and 6 kB an exchange (gloo's handshakes, a barrier)."""
    assert len(measured) == 2 * len(PAIRS)
    for key, record in measured.items():
        counted, seen = record.outcome["sent_bytes"], record.outcome["interface_bytes"]
        assert counted <= seen <= 1.07 * counted + 6000 * (1 + record.outcome["exchanges"]), key


def test_replicas_agree_and_the_vote_does_not_depend_on_the_strategy(measured):
    assert all(r.outcome["replicas_agree"] for r in measured.values())
    for hosts in (2, 4):
        gathered = measured["signsgd", "all_gather", hosts].outcome["digest"]
        assert gathered == measured["signsgd", "scatter_reduce_gather", hosts].outcome["digest"]
        assert gathered != measured["none", "all_reduce", hosts].outcome["digest"]


def test_bytes_grow_with_the_hosts_for_all_gather_alone(measured):
    payload = ELEMENTS / 8
    for hosts in (2, 4):
        gathered = measured["signsgd", "all_gather", hosts].outcome["sent_bytes"]
        shared = measured["signsgd", "scatter_reduce_gather", hosts].outcome["sent_bytes"]
        assert gathered == pytest.approx((hosts - 1) * payload, rel=0.01)
        assert shared == pytest.approx(2 * (hosts - 1) / hosts * payload, rel=0.01)


def test_no_reduction_is_faster_than_its_link(measured):
    for key, record in measured.items():
        wire = 8 * record.outcome["sent_bytes"] / 100e6
        assert record.quantiles.p50 > 0.95 * wire - 1e-3, key  # a millisecond of burst and queue may be ahead


def test_of_two_ranks_on_a_host_each_sends_its_share_over_the_network():
    pairs = (("signsgd", "scatter_reduce_gather"), ("signsgd", "hierarchical(per_node=2)"))
    flat, levels = collective.sweep(
        pairs=pairs, sizes=(ELEMENTS,), hosts=(2,), rates=("100mbit",), per_host=2, repeats=2
    ).run()
    payload = ELEMENTS / 8
    assert flat.outcome["sent_bytes"] == pytest.approx(1.5 * payload, rel=0.01)  # to all other ranks, as if far away
    assert levels.outcome["sent_bytes"] == pytest.approx(0.5 * payload, rel=0.01)  # half the payload to one other
    counted, seen = 2 * levels.outcome["sent_bytes"], levels.outcome["interface_bytes"]
    assert counted <= seen <= 1.07 * counted + 2 * 6000 * (1 + levels.outcome["exchanges"])
    assert seen < flat.outcome["interface_bytes"]
    assert levels.outcome["replicas_agree"]


def test_the_command(capsys, tmp_path):
    arguments = ["bench", "collective", "--pair", "fp16 all_reduce", "--size", "1000", "--hosts", "2", "--repeats", "2"]
    path = tmp_path / "r.jsonl"
    assert main([*arguments, "--rate", "loopback", "--record", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["command"] == (
        'gradwire bench collective --pair "fp16 all_reduce" --size 1000 --hosts 2 --rate loopback --gpus-per-host 1 '
        "--repeats 2"
    )
    assert [m["codec"] for m in shown["measured"]] == ["fp16"]
    assert main([*arguments, "--rate", "loopback", "--record", str(path)]) == 0
    assert capsys.readouterr().err == "done before: 2 hosts, loopback, 1,000 elements\n"


def test_what_cannot_run_is_refused_at_once(capsys):
    with pytest.raises(Incompatible, match="powersgd cannot run under all_gather"):
        collective.sweep(pairs=(("powersgd", "all_gather"),))
    assert main(["bench", "collective", "--pair", "fp16"]) == 2
    assert capsys.readouterr().err == (
        "gradwire: bench collective: a pair is a codec and a strategy, as in 'fp16 all_reduce'; got 'fp16'\n"
    )
