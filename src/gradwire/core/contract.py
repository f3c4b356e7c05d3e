"""What a codec owes its callers, checked in sentences: which codec, which method, what it should give, what came.

`check_codec` looks at a codec once, when an engine takes it. The others look at what its methods return, by type, shape
and dtype alone: that reads no data and makes no device wait.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, get_origin

import torch
from torch import Tensor

from gradwire.core.errors import CodecError
from gradwire.core.exchange import Exchange, Payload, Program, Reduction, as_batch
from gradwire.core.traits import Combine, Traits

if TYPE_CHECKING:
    from gradwire.core.codec import Codec

EXCHANGES = "gradwire.Sum, Max, Gather, Scatter or Route"
ONE_SHOT = {"encode": "x, rng", "decode": "payload, numel, rng", "payload_bytes": "numel"}
SOME = 1001  # elements of a row for which sizes are asked before the first step
ROUNDS = {"reduce": "x, ctx"}


def told(value: object) -> str:
    """A value in an error: tensors by shape and dtype, the rest by type."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {_name(value.dtype)}"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{value!r}" if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def fail(codec: Codec, method: str, wanted: str, came: str, remedy: str) -> CodecError:
    """The sentence of a broken contract."""
    return CodecError(f"{codec.name}: `{method}` must {wanted}, got {came}; {remedy}")


# -------------------------------------------------------------------- the codec itself, once


def check_class(cls: type[Any]) -> None:
    """What a class must be before it gets a name.

    Args:
        cls: what was registered as a codec.
    """
    from gradwire.core.codec import Codec

    if not (isinstance(cls, type) and issubclass(cls, Codec)):
        raise CodecError(f"{cls!r} is registered as a codec, and is none; derive the class from gradwire.Codec")
    fields = {f.name for f in dataclasses.fields(cls)}
    written = inspect.get_annotations(cls)
    lost = [n for n, kind in written.items() if n not in fields and not _is_class_variable(kind)]
    if lost:
        raise CodecError(
            f"{cls.__qualname__}: `{lost[0]}` is no parameter, because the class is no dataclass yet; write "
            "@gradwire.register above @dataclass(frozen=True)"
        )


def _is_class_variable(kind: object) -> bool:
    return "ClassVar" in kind if isinstance(kind, str) else kind is ClassVar or get_origin(kind) is ClassVar


def check_codec(codec: Codec) -> None:
    """Refuse a codec that cannot work, before its first step.

    Args:
        codec: the codec, as it will run.
    """
    check_class(type(codec))
    for attribute in ("name", "family", "paper"):
        if not isinstance(getattr(codec, attribute, None), str):
            raise CodecError(
                f"{type(codec).__qualname__}: the class attribute `{attribute}` must be a text; "
                f'write {attribute}: ClassVar[str] = "..."'
            )
    check_traits(codec)
    _check_methods(codec)
    if codec.traits.combine is not Combine.ROUNDS:
        said(codec, SOME)
    try:
        hash(codec)
    except TypeError:
        raise CodecError(
            f"{codec.name}: its parameters must be plain values, numbers or texts, so that codecs can be compared and "
            f"kept, got {codec!r}"
        ) from None


def check_traits(codec: Codec) -> None:
    """Refuse claims that are none, or that contradict each other.

    Args:
        codec: whose traits they are.
    """
    traits: Any = codec.traits
    if callable(traits):
        raise fail(codec, "traits", "be a property", "a method", "write @property above it")
    if not isinstance(traits, Traits):
        remedy = "write return gradwire.Traits(combine=gradwire.Combine.GATHER)"
        raise fail(codec, "traits", "return gradwire.Traits", told(traits), remedy)
    if not isinstance(traits.combine, Combine):
        raise _claim(codec, "combine", "Combine.SUM, Combine.GATHER or Combine.ROUNDS", traits.combine)
    if not isinstance(traits.memory, str):
        raise _claim(codec, "memory", 'the spec of a memory, such as "error_feedback"', traits.memory)
    for claim, high in (("delta", 1.0), ("omega", float("inf"))):
        value = getattr(traits, claim)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _claim(codec, claim, "a number or None", value)
        if value is not None and not 0 <= value <= high:
            raise _claim(codec, claim, "at least 0" if claim == "omega" else "in [0, 1]", value)
    if traits.omega is not None and not traits.unbiased:
        raise CodecError(
            f"{codec.name}: `traits` give omega = {traits.omega}, the variance of an unbiased codec, and unbiased = "
            "False; claim both, or state the contraction delta instead"
        )


def _claim(codec: Codec, claim: str, wanted: str, value: object) -> CodecError:
    return CodecError(
        f"{codec.name}: `{claim}` in its traits must be {wanted}, got {value!r}; see help(gradwire.Traits)"
    )


def _check_methods(codec: Codec) -> None:
    """The methods that its way of combining needs are written, and take what they are given."""
    from gradwire.core.codec import Codec

    rounds = codec.traits.combine is Combine.ROUNDS
    fast = rounds and type(codec).reduce_to is not Codec.reduce_to
    for method, arguments in (ROUNDS if rounds else ONE_SHOT).items():
        function = getattr(type(codec), method)
        if function is getattr(Codec, method):
            if fast:  # it does without the simple form
                continue
            needed = "reduce" if rounds else "encode, decode and payload_bytes"
            raise CodecError(
                f"{codec.name}: `{method}` is not written; a codec with combine={codec.traits.combine} writes {needed}"
            )
        try:
            inspect.signature(function).bind(codec, *arguments.split(", "))
        except TypeError as problem:
            raise CodecError(
                f"{codec.name}: `{method}` must take ({arguments}) after self, but {problem}; "
                f"write def {method}(self, {arguments})"
            ) from None


# -------------------------------------------------------------------- what its methods return


def encoded(codec: Codec, x: Tensor, payload: Any, *, steady: bool = True) -> Payload:
    """What `encode` made of `x`, if it may be sent.

    Args:
        codec: whose it is.
        x: of shape (rows, numel).
        payload: what came.
        steady: sizes are those of all later steps; a warm-up may send more than `payload_bytes` says.
    """
    rows, numel = x.shape
    remedy = "write return gradwire.Payload(rows.join(...)) with gradwire.kernels.rows"
    if not isinstance(payload, Payload):
        raise fail(codec, "encode", "return a gradwire.Payload", told(payload), remedy)
    data = payload.data
    if not isinstance(data, Tensor) or data.dim() != 2 or data.shape[0] != rows:
        wanted = f"return a payload with data of shape ({rows}, bytes), a row for each row of x"
        raise fail(codec, "encode", wanted, told(data), "keep the first dimension")
    if codec.traits.combine is Combine.GATHER and data.dtype != torch.uint8:
        wanted = "return uint8 data under Combine.GATHER"
        raise fail(codec, "encode", wanted, told(data), "gradwire.kernels.rows.join makes bytes of tensors")
    if data.device != x.device:
        wanted = f"keep its payload on {x.device}"
        raise fail(codec, "encode", wanted, f"data on {data.device}", "create tensors with device=x.device")
    if payload.lengths is not None:
        _check_lengths(codec, payload)
    if steady:
        _check_size(codec, payload, numel)
    return payload


def _check_lengths(codec: Codec, payload: Payload) -> None:
    lengths = payload.lengths
    if not isinstance(lengths, Tensor) or lengths.shape != (payload.rows,) or lengths.dtype != torch.int64:
        wanted = f"give `lengths` of shape ({payload.rows},) and dtype int64"
        raise fail(codec, "encode", wanted, told(lengths), "one number of bytes for each row")
    if lengths.device.type not in ("cpu", "meta"):
        raise fail(codec, "encode", "give `lengths` on the CPU", f"{lengths.device}", "write lengths.cpu()")
    if codec.traits.fixed_size:
        raise CodecError(
            f"{codec.name}: `encode` gives `lengths`, so sizes depend on the data, and its traits claim fixed_size; "
            "claim fixed_size=False, or leave the lengths out"
        )


def _check_size(codec: Codec, payload: Payload, numel: int) -> None:
    """`payload_bytes` says what is sent, or at least that."""
    bytes_ = said(codec, numel)
    sent = max((payload.row_bytes(row) for row in range(payload.rows)), default=bytes_)
    if sent > bytes_ or (codec.traits.fixed_size and sent != bytes_):
        exact = "exactly" if codec.traits.fixed_size else "at least"
        remedy = "count every part that `encode` puts into a row"
        wanted = f"return {exact} what a row of {numel} elements takes, {sent} bytes"
        raise fail(codec, "payload_bytes", wanted, str(bytes_), remedy)


def said(codec: Codec, numel: int) -> int:
    """What `payload_bytes` says of a row, if it is a number of bytes.

    Args:
        codec: whose it is.
        numel: elements of the row.
    """
    found: Any = codec.payload_bytes(numel)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        wanted = "return a whole number of bytes"
        raise fail(codec, "payload_bytes", wanted, told(found), "of bits: -(-bits // 8)")
    return found


def decoded(codec: Codec, method: str, values: Any, shape: Sequence[int]) -> Tensor:
    """What `decode` or `combine` returned, if it is a gradient.

    Args:
        codec: whose it is.
        method: which of them it was.
        values: what came.
        shape: what it should have.
    """
    if not isinstance(values, Tensor) or values.shape != tuple(shape) or values.dtype != torch.float32:
        wanted = f"return a tensor of shape {tuple(shape)} and dtype float32"
        raise fail(codec, method, wanted, told(values), "decode row by row, and keep both dimensions")
    return values


def followed(codec: Codec, x: Tensor, program: Any) -> Program[tuple[Tensor, Tensor | None]]:
    """Run `reduce`, and look at what it yields and returns.

    Args:
        codec: whose it is.
        x: the gradients, (rows, numel).
        program: what its call returned.
    """
    if not inspect.isgenerator(program):
        wanted = "be a generator that yields exchanges and returns (mean, own)"
        remedy = "write total = yield gradwire.Sum(x / ctx.workers)"
        raise fail(codec, "reduce", wanted, told(program), remedy)
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return _reduced(codec, x, done.value)
        _check_request(codec, request)
        answer = yield request


def _check_request(codec: Codec, request: Any) -> None:
    batch: tuple[Any, ...] = as_batch(request)
    for exchange in batch:
        if not isinstance(exchange, Exchange):
            remedy = "several exchanges that travel together are a tuple"
            raise fail(codec, "reduce", f"yield exchanges ({EXCHANGES})", told(exchange), remedy)
        kind, given = type(exchange).__name__, _given(exchange)
        if not isinstance(exchange, Reduction):
            if not isinstance(given, Payload):
                wanted = f"give {kind} a gradwire.Payload"
                raise fail(codec, "reduce", wanted, told(given), "write gradwire.Payload(data)")
        elif not isinstance(given, Tensor) or given.dim() < 2:
            wanted = f"give {kind} a tensor with a row for each worker"
            raise fail(codec, "reduce", wanted, told(given), "keep the first dimension")
    if not batch:
        raise fail(codec, "reduce", f"yield exchanges ({EXCHANGES})", "an empty tuple", "leave the yield out")


def _given(exchange: Exchange) -> Any:
    """What an author put into it, of whatever type."""
    return exchange.tensor if isinstance(exchange, Reduction) else exchange.payload


def _reduced(codec: Codec, x: Tensor, result: Any) -> tuple[Tensor, Tensor | None]:
    if not (isinstance(result, tuple) and len(result) == 2):
        remedy = "write return mean, own: the result, and what each worker contributed to it"
        raise fail(codec, "reduce", "return the pair (mean, own)", told(result), remedy)
    mean, own = result
    if own is not None and (not isinstance(own, Tensor) or own.shape != x.shape):
        wanted = f"return `own`, what each worker contributed, of shape {tuple(x.shape)}"
        raise fail(codec, "reduce", wanted, told(own), "keep a row for each worker, or return None without a memory")
    if not isinstance(mean, Tensor) or mean.shape != (1, x.shape[1]):
        wanted = f"return a mean of shape {(1, x.shape[1])}"
        raise fail(codec, "reduce", wanted, told(mean), "keep the row: the answer to a Sum has one")
    return mean, own
