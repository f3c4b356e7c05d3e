"""Does the suite catch bugs? Plants typical ones, most of them found in public implementations, one at a time.

    make mutants                                          # all of them
    python tests/mutants.py topk "trap 6:"                # those whose name contains one of these
    python tests/mutants.py --record mutants.jsonl --jobs 4

Each mutant is one replacement in a copy of the sources. The tests that it names run against that copy in a process of
its own, and one of them must fail: that one is printed. A mutant that survives is printed, too, and the exit status is
1. Before it counts, all tests that are named must pass on a copy in which nothing is changed.

Kernels are those in plain torch, unless the mutant is in a fast one, or its tests are about kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from planted_bugs import THEMES, Mutant

ROOT = Path(__file__).parent.parent
ORDINARY = "not sweep and not trainers and not engines and not frameworks"  # the suite of `make test`
COMPILED = ("cpu.py", "one_pass.py", "jit.py")  # by Numba, with what they take from each other
FAST = (*COMPILED, "gpu.py")
CHUNK = 20  # tests of unchanged sources in one process
TEST_SECONDS = 120  # of one test: a planted bug may let it hang
SECONDS = 1500  # of all tests of one mutant
SHARED = ("torch", "torch._dynamo", "torch.distributed", "numpy", "hypothesis", "pytest")  # loaded once for all


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    by: str | None  # the test that failed; None: none did, or it could not be tried
    seconds: float
    problem: str = ""  # why it could not be tried

    @property
    def word(self) -> str:
        return "NOT TRIED" if self.problem else "caught" if self.by else "SURVIVED"


def in_plain_torch(mutant: Mutant) -> bool:
    """Whether its tests run with plain torch's kernels alone."""
    return not mutant.file.endswith(FAST) and not any(test.startswith("kernels/") for test in mutant.named_tests)


def nothing_changed(mutants: Iterable[Mutant]) -> list[Mutant]:
    """What must survive, or else it would say nothing that another does not: all tests, with either kind of kernels."""
    named: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        file = "saved_state.py" if in_plain_torch(mutant) else "kernels/commit/gpu.py"
        named.setdefault(file, {}).update(dict.fromkeys(mutant.named_tests))
    same, found = "from __future__ import annotations\n", []
    for file, tests in named.items():
        each = list(tests)
        parts = [" ".join(each[at : at + CHUNK]) for at in range(0, len(each), CHUNK)]
        found += [Mutant(f"nothing changed {len(found) + i}", file, same, same, part) for i, part in enumerate(parts)]
    return found


def plant(mutant: Mutant, into: Path) -> None:
    """Copy the sources and make the one replacement. What is compiled of the others is good in the copy, too."""
    left_out = shutil.ignore_patterns("*.nbi", "*.nbc") if mutant.file.endswith(COMPILED) else None
    shutil.copytree(ROOT / "src" / "gradwire", into / "gradwire", ignore=left_out)
    path = into / "gradwire" / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.old!r} occurs {text.count(mutant.old)} times"
    path.write_text(text.replace(mutant.old, mutant.new))
    for bytecode in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        bytecode.unlink()


@dataclass(frozen=True)
class Campaign:
    """What the records of a campaign have in common.

    Args:
        jobs: mutants at a time.
        command: that runs it.
        time: of its begin, in UTC.
        began: the same, by a clock that only goes on.
    """

    jobs: int
    command: str
    time: str
    began: float


# -------------------------------------------------------------------- in the process of one mutant


class Failed:
    """Notes the first test that fails; a plugin of pytest."""

    def __init__(self) -> None:
        self.test: str | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.test is None:
            self.test = report.nodeid


def _try(mutant: Mutant, folder: str, pipe: connection.Connection) -> None:
    """Run its tests on the copy in `folder`; tell how pytest ended and which test failed."""
    os.setsid()  # so that its processes can be ended with it
    with open(Path(folder) / "output", "wb", buffering=0) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    if in_plain_torch(mutant):
        os.environ["GRADWIRE_KERNELS"] = "reference"
    sys.path.insert(0, folder)
    import pytest

    failed = Failed()
    options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-W", "ignore", "--rootdir", str(ROOT)]
    options += ["-o", f"timeout={TEST_SECONDS}", "-m", ORDINARY]
    status = pytest.main([*options, *(str(ROOT / "tests" / t) for t in mutant.named_tests)], plugins=[failed])
    sys.stdout.flush()
    pipe.send((int(status), failed.test))


# -------------------------------------------------------------------- all of them


@dataclass
class Running:
    """A process that tries a mutant."""

    mutant: Mutant
    folder: tempfile.TemporaryDirectory[str]
    process: Any
    pipe: connection.Connection
    began: float

    @classmethod
    def start(cls, mutant: Mutant) -> Running:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a killed process may still write to it
        plant(mutant, Path(folder.name))
        context = get_context("fork")  # it has torch already
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_try, args=(mutant, folder.name, theirs))
        process.start()
        theirs.close()
        return cls(mutant, folder, process, mine, time.monotonic())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def end(self) -> Outcome:
        """What became of it; it is over, or has had its time."""
        try:
            status, test = self.pipe.recv() if self.pipe.poll() else (None, None)
        except EOFError:
            status, test = None, None
        self._kill()
        self.process.join()
        found = Outcome(self.mutant, test if status == 1 else None, self.seconds, self._problem(status))
        self.folder.cleanup()
        return found

    def _problem(self, status: int | None) -> str:
        if status in (0, 1):
            return ""
        output = (Path(self.folder.name) / "output").read_text(errors="replace")
        return f"pytest ended with {status} after {self.seconds:.0f} s\n{output[-3000:]}"

    def _kill(self) -> None:
        """End the process, and all that its tests have started and left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def outcomes(mutants: Sequence[Mutant], jobs: int) -> Iterator[Outcome]:
    """Of all mutants, each as soon as it is known."""
    _share()
    waiting, running = list(mutants)[::-1], list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Running.start(waiting.pop()))
            connection.wait([one.process.sentinel for one in running], timeout=5)
            for one in [r for r in running if not r.process.is_alive() or r.seconds > SECONDS]:
                running.remove(one)
                yield one.end()
    finally:
        for one in running:
            one.end()


def _share() -> None:
    """Load what takes long once, before processes are forked: all but our own modules."""
    assert "gradwire" not in sys.modules, "processes that are forked would not load the copy"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as tests/conftest.py; nothing may run beside a fork
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    for name in SHARED:
        importlib.import_module(name)


def append(path: str, theme: str, table: Sequence[Outcome], campaign: Campaign) -> None:
    """Write down what became of the mutants of a theme; in a process of its own, as this one must not load gradwire."""
    writer = get_context("fork").Process(target=_append, args=(path, theme, table, campaign, time.monotonic()))
    writer.start()
    writer.join()
    assert writer.exitcode == 0, f"what became of the mutants of {theme} could not be written to {path}"


def _append(path: str, theme: str, table: Sequence[Outcome], campaign: Campaign, now: float) -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from gradwire.core import environment, records

    commit, dirty = environment.commit()
    each = tuple(round(one.seconds, 2) for one in table)
    record = records.Record(
        kind="mutants",
        what={"theme": theme, "jobs": campaign.jobs},
        command=campaign.command,
        time=campaign.time,
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint("planted bugs"),
        unit="seconds until a mutant was caught, or had survived",
        quantiles=records.Quantiles.of(each),
        samples=each,
        outcome={
            "mutants": len(table),
            "caught_by": {one.mutant.name: one.by for one in table if one.by},
            "survivors": [one.mutant.name for one in table if not one.by],
            "seconds": round(now - campaign.began),
        },
    )
    records.append(path, [record])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose name, or theme, contains one of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--record", help="append to this .jsonl file: one record a theme")
    given = parser.parse_args(arguments)
    chosen = {
        theme: [m for m in mutants if not given.words or any(w in m.name or w == theme for w in given.words)]
        for theme, mutants in THEMES.items()
    }
    mutants = [m for table in chosen.values() for m in table]
    asked = [f"{word!r}" if " " in word else word for word in arguments if word not in ("--record", given.record)]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    campaign = Campaign(given.jobs, " ".join(["python tests/mutants.py", *asked]), now, time.monotonic())
    unchanged, found = nothing_changed(mutants), dict[str, Outcome]()
    for one in outcomes([*unchanged, *mutants], given.jobs):
        if one.mutant in unchanged:
            if one.by or one.problem:
                print(f"the suite is red: {one.by or one.problem}")
                return 2
            continue
        found[one.mutant.name] = one
        print(f"{one.word:9} {one.seconds:4.0f} s  {one.mutant.name}{f'  <- {one.by}' if one.by else ''}", flush=True)
        print(one.problem, end="")
        for theme, table in chosen.items():  # known to its end with this one
            if given.record and one.mutant in table and all(m.name in found for m in table):
                append(given.record, theme, [found[m.name] for m in table], campaign)
    caught, seconds = sum(bool(one.by) for one in found.values()), time.monotonic() - campaign.began
    print(f"{caught} of {len(found)} mutants caught in {seconds:.0f} s")
    return 0 if caught == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
