"""`gradwire doctor` on the command line: whole jobs, their exit codes and output, and what people see."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.cli.doctor import page
from gradwire.core.records import load
from gradwire.diagnosis import job
from gradwire.diagnosis.causes import Account, Cause, Lag
from gradwire.diagnosis.codecs import Gain
from gradwire.diagnosis.report import Diagnosis
from gradwire.diagnosis.startup import sitecustomize
from gradwire.laboratory.hosts.namespace import missing

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "diagnose.py")
JOB = str(Path(__file__).parent / "planted_job.py")
PYTHON = sys.executable
RANKS = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(autouse=True)
def _plain_kernels(monkeypatch):
    """What codecs cost matters not here, and compiling them takes long."""
    monkeypatch.setenv("GRADWIRE_KERNELS", "reference")


def doctor(capfd, *command, options=()):
    """Exit code, answer, and what the job printed."""
    code = main(["doctor", *options, "--", *command])
    captured = capfd.readouterr()
    return code, json.loads(captured.out), captured.err


@pytest.mark.dist
def test_a_straggler_is_named_and_the_jobs_exit_code_and_output_are_kept(capfd):
    code, answer, err = doctor(capfd, *RANKS, JOB, "straggler", "16", "3", options=["--steps", "8"])
    assert answer["cause"] == "straggler"
    assert answer["account"]["lag"]["rank"] == 1
    assert code == 1  # torchrun's, of whatever its ranks end with
    assert len([line for line in err.splitlines() if line.startswith("sum ")]) == 2
    assert err.endswith("gradwire doctor: the job ended with exit code 1\n")


@pytest.mark.dist
def test_a_slow_link_is_named_with_its_rate_and_what_codecs_would_bring(capfd, tmp_path):
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    lab = [PYTHON, "-m", "gradwire", "lab", "--hosts", "2", "--rate", "100mbit", "--no-verify", "--"]
    file = tmp_path / "answers.jsonl"
    options = ["--steps", "6", "--record", str(file)]
    code, answer, err = doctor(capfd, *lab, PYTHON, EXAMPLE, "--steps", "14", options=options)
    assert (code, answer["cause"]) == (0, "network"), (answer, err)
    assert 50e6 < answer["bits_per_second"] < 105e6
    assert answer["headroom"] > 2
    assert {gain["codec"] for gain in answer["codecs"]} >= {"fp16", "eightbit"}
    assert answer["codecs"][0]["speedup"] > 1.5
    assert answer["line"] == answer["codecs"][0]["line"]
    (record,) = load(file)
    assert (record.kind, record.what["ranks"], len(record.samples)) == ("doctor", 2, 6)
    assert record.outcome == answer
    assert record.command.endswith(f"--no-verify -- {Path(PYTHON).name} diagnose.py --steps 14")


@pytest.mark.dist
@pytest.mark.parametrize(
    "arguments, verdict",
    [
        (["nothing", "2"], "No answer: 0 steps could be measured before the job ended, and 3 are the least; "),
        (["no DDP", "2"], "No answer: no Python process of the job wrapped a model in DistributedDataParallel "),
    ],
)
def test_a_job_with_too_few_steps_or_without_ddp_gets_a_clear_answer(capfd, monkeypatch, arguments, verdict):
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    code, answer, _ = doctor(capfd, PYTHON, JOB, *arguments)
    assert (code, answer["cause"]) == (0, "unknown")
    assert answer["verdict"].startswith(verdict)


def test_a_command_that_is_no_python_has_its_exit_code(capfd):
    code, answer, err = doctor(capfd, "sh", "-c", "echo said; exit 7")
    assert (code, answer["cause"]) == (7, "unknown")
    assert err == "said\ngradwire doctor: the job ended with exit code 7\n"
    assert main(["doctor", "--", "sh", "-c", "kill -TERM $$"]) == 128 + 15


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "gradwire: Missing argument '-- CMD'; see: gradwire doctor --help"),
        (["--", "no-such-program"], "doctor: cannot start 'no-such-program': No such file or directory"),
        (["--task", "chess", "--", "true"], "doctor: `task` must be 'images' or "),
        (["--max-loss", "-1", "--", "true"], "doctor: `max_loss` must be "),
    ],
)
def test_refusals(capsys, arguments, message):
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------- how it gets into the job


def python(tmp_path, code, **environment):
    """What a Python process of a job prints."""
    found = job.environment(tmp_path, 5, {**os.environ, **environment})
    done = subprocess.run([PYTHON, "-c", code], env=found, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_processes_without_torch_load_nothing_of_it_and_a_sitecustomize_of_the_users_own_runs(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("MINE = 42")
    code = (
        "import sys, sitecustomize; "
        "print(sitecustomize.MINE, [m for m in sys.modules if m.partition('.')[0] in ('torch', 'gradwire')])"
    )
    path = os.pathsep.join([str(own), os.environ.get("PYTHONPATH", "")])
    assert python(tmp_path, code, PYTHONPATH=path) == "42 []"


def test_the_variable_is_the_one_that_a_process_looks_for():
    text = Path(sitecustomize.__file__).read_text()
    assert f'"{job.FOLDER}" in os.environ' in text


def test_a_python_without_gradwire_leaves_a_word(tmp_path):
    """A stand-in for torch, in an isolated place where there is no gradwire."""
    package = tmp_path / "torch" / "nn" / "parallel"
    package.mkdir(parents=True)
    for folder in (tmp_path / "torch", tmp_path / "torch" / "nn", package):
        (folder / "__init__.py").write_text("")
    (package / "distributed.py").write_text("class DistributedDataParallel:\n    def __init__(self, x): self.x = x\n")
    startup = next(iter(job.startup.__path__))
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {startup!r}]; import sitecustomize; "
        "from torch.nn.parallel.distributed import DistributedDataParallel as D; print(D(3).x)"
    )
    environment = {job.FOLDER: str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run([PYTHON, "-I", "-S", "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "3\n", done.stderr
    (word,) = tmp_path.glob("*.problem")
    assert word.read_text() == "ModuleNotFoundError: No module named 'gradwire'"


# ---------------------------------------------------------------- what people see


def test_the_page_begins_with_the_verdict():
    found = Diagnosis(
        cause="network",
        verdict="The network: it is slow.",
        line='gradwire.attach(model, "eightbit")',
        account=Account(
            steps=30,
            ranks=2,
            step_seconds=0.2,
            parts={"data": 0.0, "compute": 0.05, "waiting": 0.01, "network": 0.12, "optimizer": 0.01, "other": 0.01},
            lag=Lag(1, 0.01, 0.08, 0.07, "the forward pass", 0.5),
            forward_seconds=0.02,
            backward_seconds=0.03,
            bucket_bytes=(1000, 2000),
            causes=(Cause("network", 0.12),),
        ),
        headroom=2.5,
        bits_per_second=1e8,
        codecs=(Gain("eightbit", 0.1, 2.0, 800.0, "-0.1 points, somewhere", "a line"),),
        also=("Something else.",),
        settings=("a setting",),
        remarks=("Estimates.",),
    )
    screen = Console(file=io.StringIO(), width=100)
    screen.print(page(found))
    lines = [" ".join(line.split()) for line in screen.file.getvalue().splitlines()]
    assert lines[0] == "The network: it is slow."
    assert lines[2] == 'gradwire.attach(model, "eightbit")'
    assert "exchange that nothing hides 120 ms 60 %" in lines
    assert "Slowest: rank 1, 80 ms for itself against 70 ms; it came last in 50 % of the steps." in lines
    assert any(line.startswith("Gradients: 3 kB in 2 buckets; about 100 Mbit/s was seen. If the ") for line in lines)
    assert "eightbit 100 ms 2.00 800 B -0.1 points, somewhere" in lines
    assert lines[-6:] == ["Also", "- Something else.", "", "Settings that cost", "- a setting", "Estimates."]
