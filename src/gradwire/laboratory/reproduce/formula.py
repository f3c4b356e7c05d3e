"""The published formula with one set of inputs, asked about a set-up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gradwire.core.baselines import FP16
from gradwire.core.errors import UnknownName, suggestion
from gradwire.laboratory.reproduce.inputs import SIZES, Inputs
from gradwire.laboratory.reproduce.setup import SYNC, Setup
from gradwire.planner import published
from gradwire.planner.published import BUCKET_BYTES

RANK = {"powersgd(rank=4)": 4, "powersgd(rank=8)": 8, "powersgd(rank=16)": 16}
SPARSE = {"mstopk(ratio=0.01)": 0.01, "mstopk(ratio=0.001)": 0.001, "topk(ratio=0.01)": 0.01}  # indices of 4 bytes
SHARE = {"qsgd(levels=1)": 2 / 32}  # of the gradient's bytes; appendix B has no formula, so all-gather's
SIGN = "signsgd"
KNOWN = (SYNC, FP16, SIGN, *RANK, *SPARSE, *SHARE)


@dataclass(frozen=True)
class Formula:
    """As printed, gamma slows the whole backward pass; `slowdown_only_while_sending` charges it as our model does."""

    inputs: Inputs
    slowdown_only_while_sending: bool = False

    @property
    def label(self) -> str:
        return f"formula, {self.inputs.label}"

    def backward(self, setup: Setup) -> float:
        return self.inputs.backward(setup)

    def seconds(self, setup: Setup, codec: str) -> float:
        if codec not in KNOWN:
            raise UnknownName(f"the published study has no formula for {codec!r}; {suggestion(codec, KNOWN)}")
        if codec in (SYNC, FP16):
            return self._ddp(setup, setup.ratio * (2 if codec == FP16 else 1))
        return self._compressed(setup, codec)

    def without_overlap(self, setup: Setup) -> float:
        size = SIZES[setup.model].formula_bytes
        return published.sync_sgd_without_overlap(
            size, setup.gpus, self.inputs.rate(setup), backward=self.backward(setup), latency=self.inputs.latency
        )

    def required(self, setup: Setup, within: float | None) -> float:
        return published.required_compression(
            SIZES[setup.model].formula_bytes,
            setup.gpus,
            self.inputs.rate(setup),
            backward=self.backward(setup),
            within=within,
            latency=self.inputs.latency,
            slowdown=self.inputs.slowdown,
        )

    def crossover(self, setup: Setup, codec: str) -> float | None:
        def at(codec: str, rate: float) -> float:
            return self.seconds(setup.at(bits_per_second=rate, face_value=True), codec)

        return published.crossover(partial(at, codec), partial(at, SYNC))

    def _ddp(self, setup: Setup, smaller: float) -> float:
        """All buckets are `smaller` by a factor; their number stays."""
        backward, size, bucket = (
            self.backward(setup),
            SIZES[setup.model].formula_bytes / smaller,
            BUCKET_BYTES / smaller,
        )
        rate, latency, slowdown = self.inputs.rate(setup), self.inputs.latency, self.inputs.slowdown
        if not self.slowdown_only_while_sending:
            return published.sync_sgd(
                size, setup.gpus, rate, backward=backward, latency=latency, slowdown=slowdown, bucket_bytes=bucket
            )
        count, last = published.buckets(size, bucket)
        hidden = (count - 1) * published.ring_all_reduce(bucket, setup.gpus, rate, latency=latency)
        lost = min(hidden, slowdown * backward) * (1 - 1 / slowdown)
        return max(hidden, backward + lost) + published.ring_all_reduce(last, setup.gpus, rate, latency=latency)

    def _compressed(self, setup: Setup, codec: str) -> float:
        """Backward pass, encoding and decoding, exchange; one after the other."""
        gpus, rate, latency = setup.gpus, self.inputs.rate(setup), self.inputs.latency
        computing = self.backward(setup)
        encode_decode = self.inputs.encode_decode(setup, codec)
        size = SIZES[setup.model].formula_bytes / setup.ratio
        if codec in RANK:
            p, q = (b / setup.ratio for b in SIZES[setup.model].low_rank(RANK[codec]))
            return published.powersgd(
                p, q, gpus, rate, backward=computing, encode_decode=encode_decode, latency=latency
            )
        if codec in SPARSE:
            sent = SPARSE[codec] * size
            return published.mstopk(
                sent, sent, gpus, rate, backward=computing, encode_decode=encode_decode, latency=latency
            )
        if codec == SIGN:
            return published.signsgd(size, gpus, rate, backward=computing, encode_decode=encode_decode)
        return computing + encode_decode + published.all_gather(SHARE[codec] * size, gpus, rate, latency=latency)
