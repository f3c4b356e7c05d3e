"""A codec author's slips: each is answered by a sentence that names codec, method, what was wanted and what came."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import gradwire
from gradwire.core.contract import encoded
from gradwire.kernels import rows

NUMEL = 7 * 143  # odd
GATHER, ROUNDS = (
    gradwire.Traits(combine=c, memory="error_feedback", delta=0.0)
    for c in (gradwire.Combine.GATHER, gradwire.Combine.ROUNDS)
)
FLOATS = "dtype float32"


class Whole(gradwire.Codec):
    """Sends float32 as bytes: right in all it does."""

    name, family, paper, traits = "mine", "baseline", "none", GATHER

    def encode(self, x, rng):
        return gradwire.Payload(rows.join(x))

    def decode(self, payload, numel, rng):
        return rows.take(payload.data, 0, numel, torch.float32)[0]

    def payload_bytes(self, numel):
        return 4 * numel


class Rounds(Whole):
    traits = ROUNDS

    def reduce(self, x, ctx):
        return (yield gradwire.Sum(x / ctx.workers)), x


def step(codec):
    cluster = gradwire.VirtualCluster(3, codec, strategy="auto")
    return cluster.reduce({"w": [torch.randn(7, 143) for _ in range(3)]})["w"]


def traits(**claims):
    return {"traits": gradwire.Traits(**{"combine": gradwire.Combine.GATHER} | claims)}


def sends(data, lengths=None):
    return {"encode": lambda self, x, rng: gradwire.Payload(data(x), lengths)}


def decodes(change):
    return {"decode": lambda self, *given: change(Whole.decode(self, *given))}


PAYLOAD = "write return gradwire.Payload(rows.join(...)) with gradwire.kernels.rows"
SHAPED = f"`decode` must return a tensor of shape (3, {NUMEL}) and {FLOATS}, got "
BOTH = "; decode row by row, and keep both dimensions"
ROWS = "`encode` must return a payload with data of shape (3, bytes), a row for each row of x, got a tensor of shape "
ONE_SHOT_SLIPS = [
    ({"encode": lambda s, x, r: x},
     f"`encode` must return a gradwire.Payload, got a tensor of shape (3, {NUMEL}) and {FLOATS}; {PAYLOAD}"),
    ({"encode": lambda s, x, r: (x, 1)}, f"`encode` must return a gradwire.Payload, got a tuple of 2; {PAYLOAD}"),
    ({"encode": lambda s, x, r: None}, f"`encode` must return a gradwire.Payload, got None; {PAYLOAD}"),
    (sends(lambda x: rows.join(x)[:1]), ROWS + f"(1, {4 * NUMEL}) and dtype uint8; keep the first dimension"),
    (sends(lambda x: rows.join(x)[0]), ROWS + f"({4 * NUMEL},) and dtype uint8; keep the first dimension"),
    (sends(lambda x: x),
     f"`encode` must return uint8 data under Combine.GATHER, got a tensor of shape (3, {NUMEL}) and {FLOATS}; "
     "gradwire.kernels.rows.join makes bytes of tensors"),
    (sends(lambda x: rows.join(x).to("meta")),
     "`encode` must keep its payload on cpu, got data on meta; create tensors with device=x.device"),
    (sends(rows.join, torch.tensor([8, 8, 8], dtype=torch.int32)),
     "`encode` must give `lengths` of shape (3,) and dtype int64, got a tensor of shape (3,) and dtype int32; one "
     "number of bytes for each row"),
    (sends(rows.join, torch.tensor([8, 8, 8])),
     "`encode` gives `lengths`, so sizes depend on the data, and its traits claim fixed_size; claim fixed_size=False, "
     "or leave the lengths out"),
    ({"payload_bytes": lambda s, n: 4 * n - 2},
     f"`payload_bytes` must return exactly what a row of {NUMEL} elements takes, {4 * NUMEL} bytes, got "
     f"{4 * NUMEL - 2}; count every part that `encode` puts into a row"),
    ({"payload_bytes": lambda s, n: n - 2} | sends(rows.join, torch.tensor([8, 999, 8])) | traits(fixed_size=False),
     f"`payload_bytes` must return at least what a row of {NUMEL} elements takes, 1007 bytes, got 999; count every "
     "part that `encode` puts into a row"),
    ({"payload_bytes": lambda s, n: n / 2},
     "`payload_bytes` must return a whole number of bytes, got 500.5; of bits: -(-bits // 8)"),
    ({"payload_bytes": lambda s, n: None},
     "`payload_bytes` must return a whole number of bytes, got None; of bits: -(-bits // 8)"),
    (decodes(lambda y: (y, 1)), SHAPED + "a tuple of 2" + BOTH),
    (decodes(lambda y: None), SHAPED + "None" + BOTH),
    (decodes(lambda y: y.double()), SHAPED + f"a tensor of shape (3, {NUMEL}) and dtype float64" + BOTH),
    (decodes(lambda y: y.view(-1)), SHAPED + f"a tensor of shape ({3 * NUMEL},) and {FLOATS}" + BOTH),
    (decodes(lambda y: y[:, :-1]), SHAPED + f"a tensor of shape (3, {NUMEL - 1}) and {FLOATS}" + BOTH),
    ({"combine": lambda s, p, n, r, groups=1: Whole.decode(s, p, n, r).mean(0)},
     f"`combine` must return a tensor of shape (1, {NUMEL}) and {FLOATS}, got a tensor of shape ({NUMEL},) and "
     f"{FLOATS}" + BOTH),
    ({"encode": lambda s, x: None},
     "`encode` must take (x, rng) after self, but too many positional arguments; write def encode(self, x, rng)"),
    ({"decode": lambda s, p, n, r, extra: None},
     "`decode` must take (payload, numel, rng) after self, but missing a required argument: 'extra'; "
     "write def decode(self, payload, numel, rng)"),
    ({"encode": gradwire.Codec.encode},
     "`encode` is not written; a codec with combine=Combine.GATHER writes encode, decode and payload_bytes"),
    ({"traits": ROUNDS}, "`reduce` is not written; a codec with combine=Combine.ROUNDS writes reduce"),
    ({"traits": lambda self: GATHER}, "`traits` must be a property, got a method; write @property above it"),
    ({"traits": {}},
     "`traits` must return gradwire.Traits, got a dict; write return "
     "gradwire.Traits(combine=gradwire.Combine.GATHER)"),
    (traits(combine="gather"),
     "`combine` in its traits must be Combine.SUM, Combine.GATHER or Combine.ROUNDS, got 'gather'; "
     "see help(gradwire.Traits)"),
    (traits(memory=None),
     '`memory` in its traits must be the spec of a memory, such as "error_feedback", got None; '
     "see help(gradwire.Traits)"),
    (traits(delta=3), "`delta` in its traits must be in [0, 1], got 3; see help(gradwire.Traits)"),
    (traits(delta=True), "`delta` in its traits must be a number or None, got True; see help(gradwire.Traits)"),
    (traits(unbiased=True, omega=-1), "`omega` in its traits must be at least 0, got -1; see help(gradwire.Traits)"),
    (traits(omega=0.5),
     "`traits` give omega = 0.5, the variance of an unbiased codec, and unbiased = False; claim both, or state the "
     "contraction delta instead"),
]  # fmt: skip


@pytest.mark.parametrize("slip, message", ONE_SHOT_SLIPS, ids=[message[:60] for _, message in ONE_SHOT_SLIPS])
def test_a_slip_in_a_one_shot_codec_is_told(slip, message):
    with pytest.raises(gradwire.CodecError) as caught:
        step(type("Mine", (Whole,), slip)())
    assert str(caught.value) == f"mine: {message}"


def test_what_is_right_passes():
    assert step(Whole()).shape == step(Rounds()).shape == (7, 143)


def not_a_generator(self, x, ctx):
    return x.mean(0, keepdim=True), x


def yields(what):
    def reduce(self, x, ctx):
        total = yield what(x)
        return total, x

    return reduce


def returns(what):
    def reduce(self, x, ctx):
        total = yield gradwire.Sum(x / ctx.workers)
        return what(total, x)

    return reduce


A_ROW = f"a tensor of shape (1, {NUMEL}) and {FLOATS}"
KINDS = "`reduce` must yield exchanges (gradwire.Sum, Max, Gather, Scatter or Route), got "
PAIR = "; write return mean, own: the result, and what each worker contributed to it"
OWN = f"`reduce` must return `own`, what each worker contributed, of shape (3, {NUMEL}), got "
ROUNDS_SLIPS = [
    (not_a_generator,
     "`reduce` must be a generator that yields exchanges and returns (mean, own), got a tuple of 2; "
     "write total = yield gradwire.Sum(x / ctx.workers)"),
    (yields(lambda x: x),
     KINDS + f"a tensor of shape (3, {NUMEL}) and {FLOATS}; several exchanges that travel together are a tuple"),
    (yields(lambda x: [gradwire.Sum(x)]), KINDS + "a list of 1; several exchanges that travel together are a tuple"),
    (yields(lambda x: ()), KINDS + "an empty tuple; leave the yield out"),
    (yields(lambda x: gradwire.Sum(x[0])),
     f"`reduce` must give Sum a tensor with a row for each worker, got a tensor of shape ({NUMEL},) and {FLOATS}; "
     "keep the first dimension"),
    (yields(gradwire.Gather),
     f"`reduce` must give Gather a gradwire.Payload, got a tensor of shape (3, {NUMEL}) and {FLOATS}; "
     "write gradwire.Payload(data)"),
    (returns(lambda total, x: total), f"`reduce` must return the pair (mean, own), got {A_ROW}" + PAIR),
    (returns(lambda total, x: None), "`reduce` must return the pair (mean, own), got None" + PAIR),
    (returns(lambda total, x: (total, x, x)), "`reduce` must return the pair (mean, own), got a tuple of 3" + PAIR),
    (returns(lambda total, x: (total[0], x)),
     f"`reduce` must return a mean of shape (1, {NUMEL}), got a tensor of shape ({NUMEL},) and {FLOATS}; "
     "keep the row: the answer to a Sum has one"),
    (returns(lambda total, x: (total, x[:1])),
     OWN + A_ROW + "; keep a row for each worker, or return None without a memory"),
    (returns(lambda total, x: (total, None)),
     "`reduce` must return what each worker contributed, for its memory, got None; return None only where "
     "ctx.wants_own is False"),
]  # fmt: skip


@pytest.mark.parametrize("reduce, message", ROUNDS_SLIPS, ids=[message[:60] for _, message in ROUNDS_SLIPS])
def test_a_slip_in_a_codec_with_rounds_is_told(reduce, message):
    with pytest.raises(gradwire.CodecError) as caught:
        step(type("Mine", (Rounds,), {"reduce": reduce})())
    assert str(caught.value) == f"mine: {message}"


def keeps(how):
    def reduce(self, x, ctx):
        how(ctx, x)
        return (yield gradwire.Sum(x / ctx.workers)), x

    return type("Mine", (Rounds,), {"reduce": reduce})()


@pytest.mark.parametrize(
    "how, message",
    [
        (
            lambda ctx, x: ctx.state.put("age", "w", 3),
            "gradwire: `ctx.state.put` keeps a tensor, so that it can be saved, got 3 for 'age' of 'w'; write "
            "torch.tensor(...) of it",
        ),
        (
            lambda ctx, x: ctx.state.put_flat("last", ctx.layout, x[0]),
            f"gradwire: `ctx.state.put_flat` keeps a tensor of shape (3, {NUMEL}), a row for each worker, got a "
            f"tensor of shape ({NUMEL},) and {FLOATS} for 'last'; for what all workers have alike use ctx.state.put",
        ),
    ],
)
def test_state_that_cannot_be_saved_is_told(how, message):
    with pytest.raises(gradwire.CodecError) as caught:
        step(keeps(how))
    assert str(caught.value) == message


def test_classes_that_cannot_be_codecs_are_told():
    with pytest.raises(gradwire.CodecError) as caught:

        @gradwire.register
        class Mine(Whole):
            ratio: float = 0.1

    assert str(caught.value) == (
        "test_classes_that_cannot_be_codecs_are_told.<locals>.Mine: `ratio` is no parameter, because the class is no "
        "dataclass yet; write @gradwire.register above @dataclass(frozen=True)"
    )
    with pytest.raises(gradwire.CodecError) as caught:
        gradwire.register(int)
    assert str(caught.value) == (
        "<class 'int'> is registered as a codec, and is none; derive the class from gradwire.Codec"
    )
    with pytest.raises(gradwire.CodecError) as caught:
        step(type("Mine", (Whole,), {"paper": None})())
    assert str(caught.value) == ('Mine: the class attribute `paper` must be a text; write paper: ClassVar[str] = "..."')


@dataclass(frozen=True)
class Listed(Whole):
    sizes: object = ()


def test_parameters_must_be_values():
    with pytest.raises(gradwire.CodecError) as caught:
        step(Listed([1, 2]))
    assert str(caught.value) == (
        "mine: its parameters must be plain values, numbers or texts, so that codecs can be compared and kept, got "
        "Listed(sizes=[1, 2])"
    )


def test_nothing_is_read_to_check_a_payload():
    """Meta tensors have no data: a check that looked at it would make a GPU wait."""
    x = torch.empty(2, NUMEL, device="meta")
    assert encoded(Whole(), x, Whole().encode(x, None)).nbytes == 8 * NUMEL


def test_a_warm_up_may_send_more():
    cluster = gradwire.VirtualCluster(2, "dgc(warmup=2)")
    for _ in range(3):  # the third step is steady
        cluster.reduce({"w": [torch.randn(NUMEL) for _ in range(2)]})
    assert cluster.payload_bytes == cluster.codec.payload_bytes(NUMEL)
