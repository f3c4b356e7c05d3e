"""`make fuzz`: corrupt what workers receive, and see that a codec says so, or goes on, and never worse.

    python tests/fuzz.py --cases 100000 --record fuzz.jsonl
    python tests/fuzz.py --codec topk --cases 500 --bounds       # with Numba's bounds checks
    compute-sanitizer --tool memcheck python tests/fuzz.py --device cuda --cases 2000

One case is a good step of three virtual workers, and one in which one answer of the network, any of them, is changed:
bits, bytes, numbers in headers, lengths; a sum or a maximum, too. It ends well if the step gives a result (right or
wrong: nobody can tell bytes from bytes) or an error of ours that names the codec. Failures are: another error, a crash,
a hang, a tensor more than twice as large as the largest of the good step, and a memory that is not finite although the
step counts. Many cases share a process, which has a limit of memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any

WORKERS = 3
SHAPES = (("w", (37, 29)), ("v", (8, 5, 3)), ("b", (11,)))
ROOM = 2 << 30  # bytes that a process may take beside what it has when it begins
TIMES = 2.0  # a tensor of a corrupt step may be so many times as large as the largest of a good one
SECONDS = 60.0  # of one case, on a busy machine
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**30, 255, 65_536, 2**62, -(2**63))
FLOATS = (float("nan"), float("inf"), -float("inf"), 3e38, -0.0, 1e-45)


@dataclass(frozen=True)
class Case:
    """One corruption: of which exchange, and how, by its seed."""

    codec: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How it ended: "result", "refused", or what went wrong."""

    case: Case
    kind: str
    what: str = ""

    @property
    def well(self) -> bool:
        return self.kind in ("result", "refused")


# -------------------------------------------------------------------- what is done to an answer


def changed(answer: Any, random: Any) -> Any:
    """A payload, or a sum or maximum, that is not what it was."""
    import torch

    while True:
        new = _overwritten(answer, random) if isinstance(answer, torch.Tensor) else corrupted(answer, random)
        if not _same(answer, new):
            return new


def _same(a: Any, b: Any) -> bool:
    import torch

    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    return _same(a.data, b.data) and (a.lengths is None or torch.equal(a.lengths, b.lengths))


def corrupted(payload: Any, random: Any) -> Any:
    """A payload of which some row is, most likely, not what was sent."""
    from gradwire.core.exchange import Payload

    data, lengths = payload.data, None if payload.lengths is None else payload.lengths.clone()
    row = random.randrange(data.shape[0])
    if lengths is not None and random.random() < 0.4:
        width = data.shape[1]
        wrong = (0, 1, 3, 4, 5, int(lengths[row]) - 1, int(lengths[row]) + 1, width, width + 7, -1, 2**40, 2**62)
        lengths[row] = random.choice(wrong)
    elif random.random() < 0.1 and data.dim() == 2 and data.shape[1]:
        data = data[:, : random.randrange(data.shape[1])].contiguous()  # short rows
    else:
        data = _overwritten(data, random)
    return Payload(data, lengths)


def _overwritten(data: Any, random: Any) -> Any:
    """The same with other bytes in one row."""
    import torch

    data, row = data.clone(), random.randrange(data.shape[0])
    flat = data[row].contiguous().view(-1).view(torch.uint8)
    if flat.numel():
        random.choice((_flip, _noise, _number, _float, _zeros, _swap))(flat, random)
        data[row] = flat.view(data.dtype).view(data[row].shape)
    return data


def _flip(row: Any, random: Any) -> None:
    for _ in range(random.choice((1, 1, 8))):
        row[random.randrange(row.numel())] ^= 1 << random.randrange(8)


def _noise(row: Any, random: Any) -> None:
    import torch

    start = random.randrange(row.numel())
    stop = min(row.numel(), start + random.choice((1, 4, 64, row.numel())))
    row[start:stop] = torch.frombuffer(bytearray(random.randbytes(stop - start)), dtype=torch.uint8)


def _put(row: Any, random: Any, content: bytes) -> None:
    import torch

    start = random.choice((0, 0, 4, 8, row.numel() - len(content), random.randrange(row.numel())))
    start = max(0, min(start, row.numel() - len(content)))
    content = content[: row.numel()]
    row[start : start + len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _number(row: Any, random: Any) -> None:
    number, size = random.choice(NUMBERS), random.choice((2, 4, 8))
    _put(row, random, (number % (1 << 8 * size)).to_bytes(size, "little"))


def _float(row: Any, random: Any) -> None:
    _put(row, random, struct.pack("<f", random.choice(FLOATS)))


def _zeros(row: Any, random: Any) -> None:
    row.zero_()


def _swap(row: Any, random: Any) -> None:
    """Move all bytes by some places."""
    row.copy_(row.roll(random.randrange(1, 9)))


# -------------------------------------------------------------------- one case


def attack(case: Case, device: str = "cpu", spoil: bool = True, among: int | None = None) -> Outcome:
    """A good step, so that there are memories, then one with a corrupt answer; without `spoil` both are good.

    The answer is one of `among`: as many as the good step has had, or the second one where it has others.
    """
    import torch

    from gradwire.core.errors import GradwireError
    from gradwire.core.layout import Layout
    from gradwire.engine import Engine

    random, layout = Random(case.seed), Layout.of(SHAPES)
    strategy = random.choice(("auto", "all_gather", "scatter_reduce_gather"))
    common = {"workers": WORKERS, "ranks": range(WORKERS), "tensors": "all"}
    try:
        engine = Engine(case.codec, strategy=strategy, **common)
    except GradwireError:
        engine = Engine(case.codec, **common)
    engine.step = random.choice((0, *3 * (engine.codec.steady_from_step,)))  # a warm-up sends rows of other sizes
    made, scale = torch.Generator().manual_seed(case.seed), random.choice((1e-2, 1.0))  # thresholds let through or not
    steps: list[Step] = []
    for turn in range(2):
        gradient = (scale * torch.randn(WORKERS, layout.numel, generator=made)).to(device)
        which = random.randrange(among or steps[0].answers) if turn and spoil else None
        try:
            steps.append(_step(engine, gradient, layout, which, random))
        except GradwireError as problem:
            named = engine.codec.name in str(problem)
            return Outcome(case, "refused" if named else "nameless", f"{type(problem).__name__}: {problem}")
        except (MemoryError, TimeoutError):
            raise
        except Exception as problem:
            return Outcome(case, "raised", f"{type(problem).__name__}: {str(problem)[:160]}")
    good, spoilt = steps
    if spoil and spoilt.answers <= which:
        return attack(case, device, among=spoilt.answers)
    if spoilt.largest > TIMES * good.largest:
        return Outcome(
            case, "memory", f"a tensor of {spoilt.largest:,} bytes; the largest of a good step has {good.largest:,}"
        )
    kept = [p.entry.tensor for g in engine.groups for k in ("error", "owner_error") for p in g.store.pieces(k)]
    if engine.skipped_steps == 0 and not all(bool(t.isfinite().all()) for t in kept if t.is_floating_point()):
        return Outcome(case, "poisoned", "a memory is not finite, and the step was not skipped")
    return Outcome(case, "result")


@dataclass(frozen=True)
class Step:
    """What was seen of one.

    Args:
        largest: bytes of its largest tensor.
        answers: how many there were that had anything in them, or lengths that say that they had not.
    """

    largest: int
    answers: int


def _step(engine: Any, gradient: Any, layout: Any, which: int | None, random: Any) -> Step:
    """One step, in which answer number `which` is changed."""
    from gradwire.collectives.local import carry_out
    from gradwire.core.exchange import as_answer, as_batch

    program, answer, count = engine.reduce(gradient, layout), None, 0
    with _largest() as seen:
        while True:
            try:
                request = program.send(answer)
            except StopIteration as done:
                engine.finish_step([done.value])
                return Step(seen.size, count)
            answers = [carry_out(e) for e in as_batch(request)]
            for i, one in enumerate(answers):
                if one.data.numel() or getattr(one, "lengths", None) is not None:  # a payload, or a tensor
                    if count == which:
                        answers[i] = changed(one, random)
                    count += 1
            answer = as_answer(request, answers)


def _largest() -> Any:
    """A context that sees every tensor which torch makes inside, and keeps the size of the largest."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            for one in found if isinstance(found, tuple | list) else (found,):
                if isinstance(one, torch.Tensor):
                    self.size = max(self.size, one.untyped_storage().nbytes())
            return found

    return Largest()


# -------------------------------------------------------------------- many of them


def _one_by_one(cases: Iterable[Case], device: str) -> Iterator[Case | Outcome]:
    """Each case, and then how it ended; a codec's first step, which compiles kernels, comes before and counts not."""
    known = None
    for case in cases:
        if case.codec != known:
            known = case.codec
            attack(case, device, spoil=False)
        yield case
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            outcome = attack(case, device)
        except MemoryError:
            outcome = Outcome(case, "memory", "MemoryError")
        except TimeoutError:
            outcome = Outcome(case, "slow", f"more than {SECONDS:g} s")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        yield outcome


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _ring)


def _ring(number: int, frame: Any) -> None:
    raise TimeoutError


def _process(cases: Sequence[Case], pipe: Any) -> None:
    _prepare()
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for message in _one_by_one(cases, "cpu"):
        pipe.send(message)
    pipe.close()


def outcomes(cases: Sequence[Case]) -> Iterator[Outcome]:
    """Of all cases, in a process of their own; one that takes the process with it is a crash, and the others go on."""
    context, left = multiprocessing.get_context("spawn"), list(cases)
    while left:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_process, args=(left, theirs), daemon=True)
        process.start()
        theirs.close()
        at: Case | None = None
        while True:
            if not mine.poll(600 if at is None else 3 * SECONDS):
                process.kill()
                break
            try:
                got = mine.recv()
            except EOFError:
                break
            if isinstance(got, Case):
                at = got
            else:
                left.remove(got.case)
                at = None
                yield got
        process.join(10)
        if at is not None:
            left.remove(at)
            yield Outcome(at, "crash", f"exit code {process.exitcode}")
        elif left:
            raise RuntimeError(f"the process ended with {process.exitcode} between two cases: {left[0]}")


def here(cases: Sequence[Case], device: str) -> Iterator[Outcome]:
    """Of all cases, in this process: for a device, and for tools that watch a process."""
    _prepare()
    return (message for message in _one_by_one(cases, device) if isinstance(message, Outcome))


def campaign(
    specs: Sequence[str],
    each: int,
    seed: int,
    jobs: int,
    device: str,
    done: Callable[[str, list[Outcome]], None],
) -> dict[str, list[Outcome]]:
    """So many cases of each codec; what became of them. `done` hears of each codec as soon as it is through."""

    def some(number: int) -> dict[str, list[Outcome]]:
        mine = specs[number::jobs]
        cases = [Case(spec, seed + i) for spec in mine for i in range(each)]
        found: dict[str, list[Outcome]] = {spec: [] for spec in mine}
        for outcome in here(cases, device) if device != "cpu" else outcomes(cases):
            ended = found[outcome.case.codec]
            ended.append(outcome)
            if len(ended) == each:
                done(outcome.case.codec, ended)
        return found

    if jobs == 1:
        return some(0)
    with ThreadPoolExecutor(jobs) as pool:
        return {spec: ended for part in pool.map(some, range(jobs)) for spec, ended in part.items()}


def record(spec: str, ended: Sequence[Outcome], what: dict[str, Any], command: str) -> Any:
    """How many cases of a codec ended in which way."""
    from gradwire.core import environment
    from gradwire.core.records import Quantiles, Record

    commit, dirty = environment.commit()
    wrong = [f"seed {one.case.seed}, {one.kind}: {one.what}" for one in ended if not one.well]
    return Record(
        kind="fuzz",
        what={"codec": spec, **what},
        command=command,
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint("virtual workers"),
        unit="cases that ended well",
        quantiles=Quantiles.of([len(ended) - len(wrong)]),
        samples=(len(ended) - len(wrong),),
        outcome={"cases": dict(Counter(one.kind for one in ended)), "wrong": wrong[:20]},
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", action="append", help="a spec; all codecs if none is named")
    parser.add_argument("--cases", type=int, default=3600, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--device", default="cpu", help="cuda: in this process, without a limit of memory")
    parser.add_argument("--bounds", action="store_true", help="with Numba's bounds checks")
    parser.add_argument("--plain", action="store_true", help="with plain torch in the place of compiled kernels")
    parser.add_argument("--record", help="append to this .jsonl file")
    given = parser.parse_args(arguments)
    if given.bounds:
        os.environ |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": os.path.expanduser("~/.cache/gradwire-bounds")}
    if given.plain:
        os.environ["GRADWIRE_KERNELS"] = "reference"
    from gradwire.core.codec import codecs
    from gradwire.core.records import append

    specs = given.codec or [spec for name in codecs.names() for spec in (name, *codecs.cls(name).variants)]
    each = -(-given.cases // len(specs))
    kernels = "plain torch" if given.plain else "compiled"
    what = {"device": given.device, "kernels": kernels, "bounds_checked": given.bounds}
    asked = [f"{word!r}" if "(" in word else word for word in arguments if word not in ("--record", given.record)]
    command, lock = f"python tests/fuzz.py {' '.join(asked)}", Lock()

    def done(spec: str, ended: list[Outcome]) -> None:
        with lock:
            print(f"{spec:60} {dict(Counter(one.kind for one in ended))}", flush=True)
            if given.record:
                append(given.record, [record(spec, ended, what, command)])

    found = campaign(specs, each, given.seed, given.jobs if given.device == "cpu" else 1, given.device, done)
    bad = [one for ended in found.values() for one in ended if not one.well]
    for one in bad[:100]:
        print(f"{one.case.codec}, seed {one.case.seed}, {one.kind}: {one.what}")
    total = Counter(one.kind for ended in found.values() for one in ended)
    print(json.dumps({"cases": sum(total.values()), "ended": total}))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
