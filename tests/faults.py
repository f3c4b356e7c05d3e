"""An hour of faults: `make faults`. Ranks are killed, stopped and made to fail, links slowed and cut, checkpoints torn.

    python tests/faults.py --seconds 3600 --seed 0 --record results/faults_<machine>_<date>.jsonl

1. A small model trains with an error-feedback codec, one rank on each emulated host. torchrun starts all ranks again
   when one fails, and they go on from the newest checkpoint that is whole.
2. Faults come one after the other, drawn at random from a seed. After each, the training must save a new checkpoint
   within `--timeout` (of the process group) and `--grace` (to start ranks again) seconds; else that is a hang.
3. At the end the same training runs undisturbed over loopback. Every checkpoint ever saved must have the digest that
   the undisturbed one has at that step: parameters, optimizer, memories and sums of gradients, of all ranks.
4. In every checkpoint, what the ranks gave must be what was applied and what they still owe: nothing is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.core import records
from gradwire.core.environment import commit, fingerprint, now
from gradwire.core.records import Quantiles, Record
from gradwire.laboratory.hosts import Network
from gradwire.laboratory.hosts.namespace import MARK, owner

JOB = Path(__file__).with_name("faults_job.py")
KIND = "faults"
LOST = 1e-4  # of the largest sum of gradients: rounding in float32 over many steps stays far below
ENDS = 60.0  # seconds for the last checkpoint
LATE = 20.0  # seconds after the time-out, on a busy machine, in which a rank must have ended


@dataclass(frozen=True)
class Happened:
    """One fault, and what came of it."""

    kind: str
    target: int
    seconds: float  # that it lasted
    began: float
    saved_after: float | None  # seconds until a new checkpoint; None: a hang


@dataclass
class Run:
    """A training that is disturbed."""

    network: Network
    folder: Path
    timeout: float
    process: subprocess.Popen[bytes]
    draw: random.Random
    happened: list[Happened] = field(default_factory=list)

    def log(self) -> list[dict[str, Any]]:
        return read_log(self.folder)

    def saved(self) -> int:
        """How many checkpoints were saved, again and again those of the same step."""
        return sum(line["event"] == "saved" for line in self.log())

    def signal(self, rank: int, number: int, process: int | None = None) -> int:
        """Send it to the rank's process, or to one that it had before, if that is still there; which one."""
        process = process or int((self.folder / f"process_{rank}").read_text())
        with suppress(ProcessLookupError, FileNotFoundError):
            if str(self.folder).encode() in Path(f"/proc/{process}/cmdline").read_bytes():  # a number may be used again
                os.kill(process, number)
        return process

    # ---------------------------------------------------------------- faults: each returns how long it lasted

    def kill(self, target: int) -> float:
        self.signal(target, signal.SIGKILL)
        return 0.0

    def fail(self, target: int) -> float:
        """An exception between backward and step, on a rank whose process lives on."""
        self.signal(target, signal.SIGUSR1)
        return 0.0

    def stop(self, target: int) -> float:
        return self._stopped(target, self.draw.uniform(0.5, 0.5 * self.timeout))

    def stop_for_long(self, target: int) -> float:
        return self._stopped(target, self.timeout + self.draw.uniform(3, 6))

    def _stopped(self, target: int, seconds: float) -> float:
        process = self.signal(target, signal.SIGSTOP)
        time.sleep(seconds)
        self.signal(target, signal.SIGCONT, process)
        return seconds

    def slow(self, target: int) -> float:
        rate, seconds = self.network.rates[target], self.draw.uniform(2, 8)
        self.network.set_rate(target, rate / self.draw.choice([5, 20, 100]))
        time.sleep(seconds)
        self.network.set_rate(target, rate)
        return seconds

    def cut(self, target: int) -> float:
        return self._cut(target, self.draw.uniform(0.3, 0.5 * self.timeout))

    def cut_for_long(self, target: int) -> float:
        return self._cut(target, self.timeout + self.draw.uniform(3, 6))

    def _cut(self, target: int, seconds: float) -> float:
        self.network.cut(target)
        time.sleep(seconds)
        self.network.mend(target)
        return seconds

    def tear(self, target: int) -> float:
        """All ranks are killed, and a file of the newest checkpoint has lost its end."""
        for rank in range(len(self.network.hosts)):
            self.signal(rank, signal.SIGKILL)
        newest = max(self.folder.glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
        path = self.draw.choice(sorted(newest.iterdir()))
        os.truncate(path, self.draw.randrange(path.stat().st_size))
        return 0.0


KINDS = (Run.kill, Run.fail, Run.stop, Run.stop_for_long, Run.slow, Run.cut, Run.cut_for_long, Run.tear)
FAULTS: Mapping[str, Callable[[Run, int], float]] = {function.__name__: function for function in KINDS}
BREAKS = {"kill", "fail", "stop_for_long", "cut_for_long", "tear"}  # what the training must be started again for


def read_log(folder: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    return []


def start(
    folder: Path, workers: int, arguments: Sequence[object], restarts: int, most_seconds: float
) -> subprocess.Popen[bytes]:
    """The training under torchrun; what it prints goes to the file `output`. It ends with the time, whoever lives."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *("timeout", "--kill-after", 60, most_seconds),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", workers),
        *("--max-restarts", restarts, "--monitor-interval", 0.2, JOB, "--folder", folder, *arguments),
    ]
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            list(map(str, command)),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", MARK: owner()},
            start_new_session=True,
        )


def wait_until(condition: Callable[[], bool], seconds: float, process: subprocess.Popen[bytes]) -> bool:
    """Whether it comes true in time, while the process runs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def disturb(run: Run, names: Sequence[str], seconds: float, grace: float) -> None:
    """Let faults happen until the time is up, at least one; never two at once."""
    until = time.monotonic() + seconds
    queue: list[str] = []
    while (time.monotonic() < until or not run.happened) and run.process.poll() is None:
        queue = queue or run.draw.sample(names, len(names))  # each kind as often as the others, in a random order
        kind, target = queue.pop(), run.draw.randrange(len(run.network.hosts))
        before, began = run.saved(), time.time()
        lasted = FAULTS[kind](run, target)
        wanted = before + (2 if kind not in BREAKS else 1)  # one may have been on its way
        went_on = wait_until(lambda n=wanted: run.saved() >= n, run.timeout + grace, run.process)
        run.happened.append(Happened(kind, target, lasted, began, time.time() - began if went_on else None))
        print(json.dumps(run.happened[-1].__dict__), flush=True)
        if not went_on:
            for rank in range(len(run.network.hosts)):
                run.signal(rank, signal.SIGKILL)
            wait_until(lambda n=wanted: run.saved() >= n, run.timeout + grace, run.process)
        time.sleep(run.draw.uniform(0.5, 3))


def campaign(
    seconds: float,
    *,
    seed: int = 0,
    names: Sequence[str] = tuple(FAULTS),
    hosts: int = 3,
    rate: str = "100mbit",
    codec: str = "topk(ratio=0.05)",
    timeout: float = 10.0,
    grace: float = 60.0,
    pause: float = 0.1,
    folder: Path,
) -> dict[str, Any]:
    """Disturb a training, run it undisturbed, and compare; what was found."""
    common = ["--codec", codec, "--seed", seed, "--timeout", timeout]
    disturbed, calm = folder / "disturbed", folder / "calm"
    with Network(hosts, rate) as network:
        keepers = ",".join(str(host.keeper) for host in network.hosts)
        arguments = [*common, "--steps", 10**9, "--pause", pause, "--keepers", keepers]
        process = start(disturbed, hosts, arguments, restarts=10**6, most_seconds=seconds + 10 * ENDS)
        run = Run(network, disturbed, timeout, process, random.Random(seed))
        try:
            wait_until(lambda: run.saved() >= 2, timeout + grace, process)
            disturb(run, names, seconds, grace)
            (disturbed / "enough").touch()
            code = process.wait(ENDS + timeout + grace)
        finally:
            end(process)
    log = read_log(disturbed)
    last = max((line["step"] for line in log if line["event"] == "saved"), default=0)
    print(f"ended with exit code {code} at step {last}; now without faults", flush=True)
    process = start(calm, hosts, [*common, "--steps", last], restarts=0, most_seconds=seconds + 10 * ENDS)
    try:
        process.wait()
    finally:
        end(process)
    return found(log, read_log(calm), run.happened, code) | {"ends": ends(log, run.happened), "timeout": timeout}


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(40)
        process.kill()
    process.wait()


def found(
    log: Sequence[Mapping[str, Any]], calm: Sequence[Mapping[str, Any]], happened: Sequence[Happened], code: int
) -> dict[str, Any]:
    """What the two runs' logs say."""
    wanted = {line["step"]: line["digest"] for line in calm if line["event"] == "saved"}
    saved = [line for line in log if line["event"] == "saved"]
    resumed = [line for line in log if line["event"] == "resumed"]
    return {
        "exit_code": code,
        "faults": dict(Counter(fault.kind for fault in happened)),
        "hangs": sum(fault.saved_after is None for fault in happened),
        "restarts": max((line["attempt"] for line in log), default=0),
        "resumed": len(resumed),
        "resumed_bit_for_bit": sum(line["same"] for line in resumed),
        "refused_checkpoints": len({(x["attempt"], x["step"]) for x in log if x["event"] == "refused"}),
        "steps": max((line["step"] for line in saved), default=0),
        "checkpoints": len(saved),
        "checkpoints_as_undisturbed": sum(wanted.get(line["step"]) == line["digest"] for line in saved),
        "most_lost": max((line["lost"] for line in saved), default=0.0),
        "said": dict(Counter(_kind_of(line) for line in log if line["event"] == "failed")),
    }


def ends(log: Sequence[Mapping[str, Any]], happened: Sequence[Happened]) -> dict[str, list[float]]:
    """Seconds from a fault to the end of the last other rank that told of its end, by kind of fault."""
    found: dict[str, list[float]] = {}
    for i, fault in enumerate(happened):
        until = happened[i + 1].began if i + 1 < len(happened) else float("inf")
        lines = [x for x in log if x["event"] == "failed" and fault.began < x["time"] < until]
        others = [x for x in lines if x["rank"] != fault.target or fault.kind == "cut_for_long"]
        first = [x for x in others if x["attempt"] == lines[0]["attempt"]]
        if fault.kind in BREAKS and first:
            found.setdefault(fault.kind, []).append(round(first[-1]["time"] - fault.began, 2))
    return found


def _kind_of(line: Mapping[str, Any]) -> str:
    """How a rank ended, in few words."""
    told = " (told by a rank that failed)" if " has stopped (" in line["said"] else ""
    return f"{line['kind']}{told}"


def verdict(outcome: Mapping[str, Any]) -> list[str]:
    """What is wrong; nothing if all held."""
    checks = {
        f"the training ended with exit code {outcome['exit_code']}": outcome["exit_code"] == 0,
        f"{outcome['hangs']} hangs": outcome["hangs"] == 0,
        "a restart did not resume bit for bit": outcome["resumed"] == outcome["resumed_bit_for_bit"],
        "a checkpoint differs from the undisturbed": outcome["checkpoints"]
        == outcome["checkpoints_as_undisturbed"]
        > 0,
        f"{outcome['most_lost']:.2g} of the gradients was lost": outcome["most_lost"] < LOST,
    }
    late = {kind: max(seconds) for kind, seconds in outcome["ends"].items() if max(seconds) > LATE + outcome["timeout"]}
    checks[f"ranks ended after the time-out: {late}"] = not late
    return [problem for problem, held in checks.items() if not held]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--codec", default="topk(ratio=0.05)")
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    given = vars(options).copy()
    record, names, seconds = given.pop("record"), given.pop("faults"), given.pop("seconds")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through all that cleans up
    with tempfile.TemporaryDirectory(prefix="gradwire-faults-") as folder:
        outcome = campaign(seconds, names=names, folder=Path(folder), **given)
        log = read_log(Path(folder) / "disturbed")
    samples = recoveries(log)
    problems = verdict(outcome)
    print(json.dumps(outcome, indent=1), *problems or ["all held"], sep="\n")
    if record is not None and samples:
        at, dirty = commit()
        records.append(
            record,
            [
                Record(
                    kind=KIND,
                    what={"faults": names, "seconds": seconds, "workers": options.hosts, **given},
                    command=f"python {shlex.join(sys.argv)}",
                    time=now(),
                    commit=at,
                    dirty=dirty,
                    environment=fingerprint("gloo over emulated hosts"),
                    unit="s from the last checkpoint before a restart to the first after it",
                    quantiles=Quantiles.of(samples),
                    samples=tuple(samples),
                    outcome=outcome,
                )
            ],
        )
    sys.exit(bool(problems))


def recoveries(log: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds between the last checkpoint before a restart and the first after it."""
    gaps, last = [], None
    for line in log:
        if line["event"] == "saved":
            if last is not None and line["attempt"] != last["attempt"]:
                gaps.append(line["time"] - last["time"])
            last = line
    return gaps


if __name__ == "__main__":
    main()
