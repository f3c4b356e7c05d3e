"""Settings that cost: what a job was told, beside what was seen. Each sentence says what to set instead."""

from __future__ import annotations

from collections.abc import Iterator

from gradwire.core.units import format_bytes, format_rate
from gradwire.diagnosis.causes import BLAMED, BUCKETS, DATA, Account, tiny
from gradwire.diagnosis.watch import CPU, Settings, Watch

DEFAULT_CAP = 25 << 20  # bytes: DDP's
LARGE = 10_000_000  # bytes of a gradient, from which a copy counts
UNUSED_LINK = 2.0  # times as fast as what was seen: another card is worth a look

# what costs when it is set to one of these, and why
FLAGS = {
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "checks every collective among all ranks before it runs"),
    "CUDA_LAUNCH_BLOCKING": (("1",), "makes the host wait for every kernel"),
    "TORCH_NCCL_BLOCKING_WAIT": (("1",), "makes the host wait for every collective"),
    "NCCL_P2P_DISABLE": (("1",), "keeps the GPUs of a host from talking directly"),
    "NCCL_IB_DISABLE": (("1",), "keeps NCCL from using InfiniBand or RoCE"),
    "NCCL_DEBUG": (("INFO", "TRACE"), "writes a log while training"),
}


def costly(watch: Watch, found: Account, bits_per_second: float | None) -> list[str]:
    """Sentences on settings of the job, those of rank 0's; `bits_per_second`: of the network, as it was seen."""
    settings = watch.settings
    return [
        *_buckets(settings, found),
        *_arguments(settings),
        *_data(settings, found),
        *_flags(settings),
        *_threads(settings, watch.local_ranks, found),
        *_interface(watch, bits_per_second),
    ]


def _buckets(settings: Settings, found: Account) -> Iterator[str]:
    total, count = sum(settings.bucket_bytes), len(settings.bucket_bytes)
    if tiny(settings.bucket_bytes) and all(c.kind != BUCKETS for c in found.causes):
        mean = format_bytes(total / count)
        yield f"gradients go in {count} buckets of {mean}: leave bucket_cap_mb at its default, 25"
    cap = settings.bucket_cap_bytes
    exposed = found.network_seconds >= BLAMED * found.step_seconds
    if cap > 2 * DEFAULT_CAP and count <= 2 and total > 2 * DEFAULT_CAP and exposed:
        yield (
            f"bucket_cap_mb={cap >> 20} leaves {count} bucket{'s' * (count > 1)} for {format_bytes(total)}, so little "
            "of the exchange hides behind the backward pass: leave it at its default, 25"
        )


def _arguments(settings: Settings) -> Iterator[str]:
    if settings.find_unused_parameters and not settings.unused_bytes:
        yield (
            "find_unused_parameters=True, and every parameter was used in every step: without it DDP does not walk the "
            "graph after each forward pass"
        )
    total = sum(settings.bucket_bytes)
    if not settings.gradient_as_bucket_view and total >= LARGE:
        yield (
            f"gradient_as_bucket_view=False keeps a second copy of {format_bytes(total)}; True saves it, and a pass "
            "over it"
        )
    if settings.anomaly_detection:
        yield "autograd's anomaly detection is on: it keeps a traceback of every operation; switch it off"


def _data(settings: Settings, found: Account) -> Iterator[str]:
    if all(cause.kind != DATA for cause in found.causes) and found.share("data") < BLAMED / 2:
        return
    if settings.loader_workers == 0:
        yield "the data loader has num_workers=0: samples are made while nothing else happens"
    if settings.device != CPU and settings.pin_memory is False:
        yield "the data loader has pin_memory=False: copies to the GPU wait for pageable memory"


def _flags(settings: Settings) -> Iterator[str]:
    for name, (values, why) in FLAGS.items():
        value = settings.environment.get(name, "")
        if value.upper() in values:
            yield f"{name}={value} {why}: unset it when you are done with it"


def _threads(settings: Settings, local_ranks: int, found: Account) -> Iterator[str]:
    """Where computing on a CPU is most of a step."""
    each = settings.cores // max(1, local_ranks)
    if settings.device == CPU and each >= 2 * settings.threads and found.share("compute") > 0.5:
        yield (
            f"each rank computes on {settings.threads} thread{'s' * (settings.threads > 1)}, and there are {each} "
            f"cores for it: OMP_NUM_THREADS={each} (torchrun sets 1)"
        )


def _interface(watch: Watch, bits_per_second: float | None) -> Iterator[str]:
    """A card that is much faster than what was seen between hosts; on one host nothing goes over a card."""
    settings = watch.settings
    if bits_per_second is None or watch.ranks <= watch.local_ranks or not settings.interfaces:
        return
    name, fastest = max(settings.interfaces.items(), key=lambda pair: pair[1])
    if fastest < UNUSED_LINK * bits_per_second:
        return
    variable = "NCCL_SOCKET_IFNAME" if settings.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    told = settings.environment.get(variable)
    now = f"{variable}={told}" if told else f"{variable} is not set"
    yield (
        f"about {format_rate(bits_per_second)} was seen between hosts, and {name} can do {format_rate(fastest)}: look "
        f"whether it is used ({now})"
    )
