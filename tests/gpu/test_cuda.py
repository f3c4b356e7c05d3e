"""CUDA tensors through the same code: equal to the CPU, no host synchronisation on the way, DDP on the device."""

from __future__ import annotations

import os

import pytest
import torch

import gradwire
from gradwire.collectives.choose import possible
from gradwire.conformance import lockstep
from gradwire.core.codec import Combine, codecs
from gradwire.core.layout import Layout
from gradwire.core.random import Stream
from gradwire.kernels import bitpack
from gradwire.kernels.random import coins, halves, quick_words, reference, uniform, words

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CODECS = [c for n in codecs.names() for c in [gradwire.codec(n), *map(gradwire.codec, codecs.cls(n).variants)]]
PAIRS = [(c, s) for c in CODECS for s in (possible(c) or ["auto"])]
# singular vectors of nearly equal singular values differ from one library to the next, and so does what is kept
ILL_CONDITIONED = {"atomo", "gradiveq"}
each = pytest.mark.parametrize("codec, strategy", PAIRS, ids=[f"{c.spec}-{s}" for c, s in PAIRS])


def gradients(workers, device, step=0):
    shapes = {"w": (64, 48), "b": (48,), "v": (33, 70)}
    return {
        n: [
            torch.randn(s, generator=torch.Generator().manual_seed(100 * step + 10 * i + w)).to(device)
            for w in range(workers)
        ]
        for i, (n, s) in enumerate(shapes.items())
    }


def one_step(engines, grads):
    """What each rank holds after a step, flat."""
    layout = Layout.of((name, tensors[0].shape) for name, tensors in grads.items())
    given = [torch.cat([ts[rank].flatten() for ts in grads.values()]) for rank in range(len(engines))]
    flats, _ = lockstep.step(engines, layout, given)
    return flats


@pytest.mark.parametrize("draw", [words, quick_words, uniform, halves, coins])
def test_random_numbers_are_the_same_on_every_device(draw):
    here, there = (draw(Stream((12345,), (7,)), (10_001,), torch.device(d)) for d in ("cpu", "cuda"))
    assert here.equal(there.cpu())


@pytest.mark.parametrize("key", [0, 7, 2**32 - 1, 2**32, 0x9E3779B97F4A7C15, 2**63, 2**64 - 1])
@pytest.mark.parametrize("first", [0, 1, 12_345, 2**31 - 700])
def test_words_of_one_launch_are_the_plain_ones(key, first):
    """Triton's words, where it is installed; blocks that fill a program, one more, and none."""
    device = torch.device("cuda")
    for blocks in (0, 1, 3, 511, 512, 513):
        assert reference.block_words(key, first, blocks, device).equal(
            reference.plain_words(key, first, blocks, device)
        )
    for offset in (1, 2, 3):
        stream = Stream((key,), (4 * first + offset,))
        assert words(stream, (1001,), device).cpu().equal(words(stream, (1001,), torch.device("cpu")))
    beyond = reference.block_words(key, 2**31 - 2, 5, device)  # more than Triton's counter holds: plain torch
    assert beyond.cpu().equal(reference.plain_words(key, 2**31 - 2, 5, torch.device("cpu")))


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("numel", [0, 1, 7, 1001])
def test_bits_are_packed_alike_on_every_device(width, numel):
    codes = torch.randint(2**width, (3, numel), generator=torch.Generator().manual_seed(width), dtype=torch.uint8)
    data = bitpack.pack(codes.cuda(), width)
    assert data.cpu().equal(bitpack.pack(codes, width))
    assert bitpack.unpack(data, width, numel).cpu().equal(codes)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_controller_watches_and_switches_without_waiting():
    """Norms stay on the device until an epoch ends; results are those of the CPU."""
    controller = gradwire.Accordion("powersgd(rank=4)", "topk(ratio=0.1)", every=1)
    here, there = (gradwire.VirtualCluster(3, controller=controller, seed=3) for _ in range(2))
    for epoch in range(3):
        batches = [gradients(3, "cuda", 2 * epoch + step) for step in range(2)]
        results = [there.reduce(batches[0])]
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            results.append(there.reduce(batches[1]))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for step, found in enumerate(results):
            for name, wanted in here.reduce(gradients(3, "cpu", 2 * epoch + step)).items():
                assert torch.isclose(wanted, found[name].cpu(), rtol=1e-3, atol=1e-4).float().mean() > 0.97
        settings = [cluster.end_epoch(0.1, 0.1) for cluster in (here, there)]
        assert settings[0] == settings[1]
    assert there.switches


@each
def test_cuda_gives_what_the_cpu_gives(codec, strategy):
    """Bit for bit where nothing but selection, rounding and bits is involved; else to the order of sums."""
    here, there = (gradwire.VirtualCluster(4, codec, strategy=strategy, seed=3) for _ in range(2))
    for step in range(3):
        a, b = here.reduce(gradients(4, "cpu", step)), there.reduce(gradients(4, "cuda", step))
        for name in a:
            assert b[name].device.type == "cuda"
            if codec.name in ILL_CONDITIONED:
                assert b[name].isfinite().all()
                continue
            if getattr(codec, "rotates", False):  # one rounding that flips shows in every element of its chunk
                assert (a[name] - b[name].cpu()).norm() < 0.25 * a[name].norm()
                continue
            close = torch.isclose(a[name], b[name].cpu(), rtol=1e-3, atol=1e-5)
            # a sum that rounds otherwise may flip a selection or a rounding here and there
            assert close.float().mean() > (0.97 if codec.traits.combine is Combine.GATHER else 0.999)
    assert here.sent_bytes == there.sent_bytes or not codec.traits.fixed_size


@each
def test_replicas_agree_bit_for_bit(codec, strategy):
    engines = lockstep.engines(5, codec, strategy=strategy, tensors="all")
    for step in range(3):
        first, *others = one_step(engines, gradients(5, "cuda", step))
        assert all(first.equal(o) for o in others)


@each
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_the_host(codec, strategy):
    if not codec.traits.fixed_size:
        pytest.skip("the host must know how much to send")
    if codec.steady_from_step:
        pytest.skip("a decomposition at the end of a phase waits for the device")
    cluster = gradwire.VirtualCluster(3, codec, strategy=strategy)
    batches = [gradients(3, "cuda", step) for step in range(4)]
    cluster.reduce(batches[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:]:
            cluster.reduce(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@each
def test_a_bad_gradient_is_seen_and_leaves_no_trace(codec, strategy):
    cluster = gradwire.VirtualCluster(3, codec, strategy=strategy)
    cluster.reduce(gradients(3, "cuda"))
    before = {n: cluster.memory(n) for n in ("w", "b", "v")}
    bad = gradients(3, "cuda", 1)
    bad["v"][2][5, 5] = float("inf")
    assert any(not t.isfinite().all() for t in cluster.reduce(bad).values())
    for name, old in before.items():
        assert all(a is b is None or a.equal(b) for a, b in zip(old, cluster.memory(name), strict=True))
    assert all(t.isfinite().all() for t in cluster.reduce(gradients(3, "cuda", 2)).values())
    assert cluster.engine.skipped_steps == cluster.engine.keeps_anything


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("codec", ["none", "topk", "efsignsgd", "powersgd", "topkc"])
def test_two_levels_give_what_they_give_on_the_cpu_and_never_wait(codec):
    here, there = (gradwire.VirtualCluster(6, codec, strategy="hierarchical(per_node=2)", seed=3) for _ in range(2))
    batches = [gradients(6, "cuda", step) for step in range(3)]
    results = [there.reduce(batches[0])]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results += [there.reduce(batch) for batch in batches[1:]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, found in enumerate(results):
        for name, wanted in here.reduce(gradients(6, "cpu", step)).items():
            assert torch.isclose(wanted, found[name].cpu(), rtol=1e-3, atol=1e-5).float().mean() > 0.97
    assert (here.sent_bytes, here.node_bytes) == (there.sent_bytes, there.node_bytes)
    engines = lockstep.engines(6, codec, strategy="hierarchical(per_node=2)", tensors="all", seed=3)
    for batch in batches:
        first, *others = one_step(engines, batch)
        assert all(first.equal(o) for o in others)


def train(rank, workers, backend, store, codec, mode, device, results):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=workers)
    torch.manual_seed(0)
    hidden = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    model = DistributedDataParallel(torch.nn.Sequential(*hidden, torch.nn.Linear(256, 8)).to(device), bucket_cap_mb=0.1)
    handle = gradwire.attach(model, codec, mode=mode) if codec else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(1 + rank)
    for _ in range(15):
        x = torch.randn(32, 64, generator=data).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = [torch.empty_like(flat) for _ in range(workers)]
    dist.all_gather(both, flat)
    results.append((flat.cpu(), all(flat.equal(o) for o in both), handle and handle.stats()))
    if handle:
        handle.detach()
    dist.destroy_process_group()


def spawned(rank, workers, backend, folder, codec, mode):
    results = []
    train(rank, workers, backend, os.path.join(folder, "store"), codec, mode, torch.device("cuda"), results)
    torch.save(results[0], os.path.join(folder, f"{rank}.pt"))


def run(backend, workers, folder, codec, mode="overlap"):
    import torch.multiprocessing as mp

    mp.spawn(spawned, (workers, backend, str(folder), codec, mode), workers)
    return [torch.load(os.path.join(folder, f"{r}.pt"), weights_only=False) for r in range(workers)]


@pytest.mark.dist
@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
@pytest.mark.parametrize("codec", ["none", "topk", "powersgd(rank=2)", "qsgd", "signsgd", "topkc(ratio=0.2)"])
def test_ddp_of_two_ranks_on_one_device(codec, mode, tmp_path):
    """Gloo carries CUDA tensors, so several ranks can share the device."""
    results = run("gloo", 2, tmp_path, codec, mode)
    assert all(same and flat.isfinite().all() for flat, same, _ in results)
    assert results[0][2]["sent_bytes"] > 0
    if codec == "none":
        (tmp_path / "plain").mkdir()
        assert results[0][0].equal(run("gloo", 2, tmp_path / "plain", None)[0][0])


@pytest.mark.dist
def test_nccl_with_one_rank_passes_gradients_through(tmp_path):
    results = []
    with pytest.warns(UserWarning, match="one rank"):
        train(0, 1, "nccl", str(tmp_path / "store"), "topk", "overlap", torch.device("cuda"), results)
    assert results[0][1]
