"""What people type and hand over by mistake: one row a slip, with its exit code and its whole message.

A message says who speaks, what was wanted, what came, and what to do next. It is never a traceback, and blames nobody
but the input. `{dir}` stands for the folder that the command runs in.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.core.records import Quantiles, Record

MAKE = "make some, as in: gradwire bench step --record steps.jsonl"
AGAIN = "records are never edited, so take the file from its source again"
KEYS = "what.model, what.batch, what.hosts, what.ranks_per_host, what.bits_per_second, what.configuration"
SETUP = "--model resnet50 --batch 64 --gpus 16 --bandwidth 10gbit"
UNIT = "a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got"
LAB = "lab: a link is shaped to a rate from 100 kbit/s to 100 Gbit/s, got"
TORN = "warning: torn.jsonl, line 2: the last line is torn and was left out; the run that wrote it was probably killed"
NO_STEP = (
    "validate: there is no step record of another place whose model the profile knows, and no record of a training of "
    "such a model; measure more: gradwire bench step --rate 200mbit --rate 1gbit"
)
PROFILES = "h200, h200-bf16, h200-fp32, this-machine, v100-paper-measured, v100-paper-simulated"
QUANTITIES = "bandwidth, batch, compute_speed, encode_speed, gpus, gpus_per_node, latency, ratio"
STRATEGIES = "all_gather, all_reduce, auto, hierarchical, parameter_server, scatter_reduce_gather"
TASKS = "'images' or 'language' or 'recommendation' or 'segmentation'"
EXAMPLE = "such as: model.example = lambda batch: (torch.randn(batch, 3, 32, 32),)"


def needs_folder(command: str, option: str, name: str) -> str:
    return f"{command}: `{option}` '{name}' needs a folder that is there; make it first: mkdir -p {{dir}}/new"


def no_file(command: str) -> str:
    return f"{command}: there is no file 'none.jsonl'; check the name, or {MAKE}"


def no_files(command: str) -> str:
    return f"{command}: the folder 'folder' has no .jsonl file; check the name, or {MAKE}"


def no_text(name: str = "binary.jsonl") -> str:
    return f"{name}, line 1: JSON was wanted, got bytes that are no text; {MAKE}"


SLIPS = [
    # files of records
    ("validate none.jsonl --hardware h200", 2, no_file("validate")),
    ("validate folder --hardware h200", 2, no_files("validate")),
    ("validate binary.jsonl --hardware h200", 2, no_text()),
    ("validate empty.jsonl --hardware h200", 2, NO_STEP),
    ("validate torn.jsonl --hardware h200", 2, f"{TORN}\ngradwire: {NO_STEP}"),
    ("validate text.jsonl --hardware h200", 2, f"text.jsonl, line 1: no line of JSON (Expecting value); {AGAIN}"),
    (
        "validate middle.jsonl --hardware h200",
        2,
        f"middle.jsonl, line 2: no line of JSON (Unterminated string starting at); {AGAIN}",
    ),
    ("validate object.jsonl --hardware h200", 2, f"object.jsonl, line 1: a record was wanted, got an object; {MAKE}"),
    ("validate list.jsonl --hardware h200", 2, f"list.jsonl, line 1: a record was wanted, got a list; {MAKE}"),
    ("validate bare.jsonl --hardware h200", 2, f"bare.jsonl, line 1: a record of kind step is without {KEYS}; {AGAIN}"),
    (
        "validate nan.jsonl --hardware h200",
        2,
        f"nan.jsonl, line 1: `quantiles` and `samples` must be numbers, got nan; {AGAIN}",
    ),
    *(
        (f"{command} {name}.jsonl{more}", 2, f"{name}.jsonl, line 1: `what.{key}` must be {wanted}, got {got}; {AGAIN}")
        for command, more in (("validate", " --hardware h200"), ("calibrate --records", ""), ("report", ""))
        for name, key, wanted, got in (
            ("hosts", "hosts", "a whole number", "'2'"),
            ("rate", "bits_per_second", "a number", "'1gbit'"),
            ("model", "model", "a text", "['shapes']"),
        )
    ),
    ("calibrate --records none.jsonl", 2, no_file("calibrate")),
    ("calibrate --records folder", 2, no_files("calibrate")),
    ("calibrate --records binary.jsonl", 2, no_text()),
    (
        "calibrate --records empty.jsonl",
        2,
        "calibrate: records of one place are wanted, got: none; choose one with --place",
    ),
    ("calibrate --records bare.jsonl", 2, f"bare.jsonl, line 1: a record of kind step is without {KEYS}; {AGAIN}"),
    ("tta none.jsonl", 2, no_file("tta")),
    ("tta folder", 2, no_files("tta")),
    ("tta binary.jsonl", 2, no_text()),
    ("tta empty.jsonl", 2, "tta: no training in empty.jsonl; make some: gradwire bench accuracy --record FILE"),
    ("report none.jsonl", 2, no_file("report")),
    ("report folder", 2, no_files("report")),
    ("report binary.jsonl", 2, no_text()),
    ("report empty.jsonl", 2, f"report: 'empty.jsonl' is empty, so there is nothing to report; {MAKE}"),
    ("reproduce table2 --records none.jsonl", 2, no_file("reproduce")),
    ("reproduce table2 --records binary.jsonl", 2, no_text()),
    *(
        (
            f"reproduce table2 --records {name}",
            2,
            f"reproduce: `--records` {name}: there is no record that a claim is checked against; "
            f"leave it out, or {MAKE}",
        )
        for name in ("folder", "empty.jsonl")
    ),
    ("bench step --rate loopback --record binary.jsonl", 2, no_text()),
    # files to write
    ("report steps.jsonl -o new/a.html", 2, needs_folder("report", "--output", "new/a.html")),
    ("report steps.jsonl -o a.pdf", 2, "report: the page is HTML, so `--output` must end in .html, got 'a.pdf'"),
    ("reproduce fig19 --plot new/a.png", 2, needs_folder("reproduce", "--plot", "new/a.png")),
    (
        "reproduce fig19 --plot a.pdf",
        2,
        "chart: a picture is written as .png, .svg, .html, .csv or .json, got 'a.pdf'; choose one of these endings",
    ),
    ("reproduce table2 --csv new/a.csv", 2, needs_folder("reproduce", "--csv", "new/a.csv")),
    (f"whatif --sweep ratio=1:2 {SETUP} --plot new/a.png", 2, needs_folder("whatif", "--plot", "new/a.png")),
    (
        f"whatif --sweep ratio=1:2 {SETUP} --csv folder",
        2,
        "whatif: `--csv` must name a file that can be written, got 'folder'; choose another",
    ),
    ("bench encode --record new/a.jsonl", 2, needs_folder("bench encode", "--record", "new/a.jsonl")),
    (
        "demo --record folder",
        2,
        "demo: `--record` must name a file that can be written, got 'folder'; choose another",
    ),
    ("calibrate -o new/a.toml", 2, needs_folder("calibrate", "--output", "new/a.toml")),
    (
        "calibrate -o there.toml",
        2,
        "calibrate: 'there.toml' is there already; overwrite it with --force, or name another file: -o FILE",
    ),
    # profiles
    (
        f"predict {SETUP} --hardware h20",
        2,
        "no hardware profile 'h20', and no file of that name; did you mean h200?",
    ),
    (
        f"predict {SETUP} --hardware none.toml",
        2,
        f"no hardware profile 'none.toml', and no file of that name; known: {PROFILES}",
    ),
    (
        f"advise {SETUP} --hardware binary.jsonl",
        2,
        "profile binary.jsonl: a text in TOML was wanted, got no text; name a file that `gradwire calibrate` wrote",
    ),
    (
        f"advise {SETUP} --hardware there.toml",
        2,
        "profile there.toml: cannot be read ('network' is missing); write it again: gradwire calibrate -o there.toml",
    ),
    # numbers
    ("bench encode --size 0", 2, "bench encode: `size` must be a whole number of at least 1, got 0"),
    ("bench encode --seconds nan", 2, "bench encode: `seconds` must be seconds from 0 to 86400, got nan"),
    ("calibrate --seconds -1", 2, "bench step: `seconds` must be seconds from 0 to 86400, got -1.0"),
    ("calibrate --hosts 1", 2, "calibrate: `--hosts` must be a whole number of at least 2, got 1"),
    ("calibrate --batch 0 --rate loopback", 2, "bench step: `batch` must be a whole number of at least 1, got 0"),
    (
        "size --model resnet20 --codec topk --workers 1000000000",
        2,
        "size: `--workers` must be a whole number from 1 to 16384, got 1000000000",
    ),
    (
        "size --model resnet20 --codec topk --workers 1e3",
        2,
        "Invalid value for '--workers': Input should be a valid integer, unable to parse string as an integer, "
        "got '1e3'; see: gradwire size --help",
    ),
    (
        "predict --model resnet50 --batch 64 --gpus 100000000000000000000 --bandwidth 10gbit",
        2,
        "`gpus` must be at most 1,000,000, got 100000000000000000000",
    ),
    (
        "predict --model resnet50 --batch 0 --gpus 16 --bandwidth 10gbit",
        2,
        "`batch` must be a whole number of at least 1, got 0",
    ),
    (
        f"predict {SETUP} --gpus-per-node 3",
        2,
        "16 GPUs do not fill nodes of 3; type a multiple, such as 15 or 18, or --gpus-per-node 1",
    ),
    (f"predict {SETUP} --latency 20", 2, "a time needs a number and a unit, as in 20us, 1.5ms or 2s; got '20'"),
    (f"advise {SETUP} --max-loss nan", 2, "advise: `max_loss` must be points from 0 to 100, such as 0.5, got nan"),
    (f"advise {SETUP} --top 0", 2, "advise: `top` must be a whole number of at least 1, got 0"),
    (
        "whatif --sweep bandwidth=1gbit:30gbit:100000000 --model resnet50 --batch 64 --gpus 16",
        2,
        "whatif: the number of points of a range is a whole number from 2 to 5000, got '100000000' in "
        "'bandwidth=1gbit:30gbit:100000000'",
    ),
    ("demo --steps 0", 2, "demo: `steps` must be at least 10, because the first 5 are not timed, got 0"),
    (
        "doctor --steps=1 -- true",
        2,
        "Invalid value for '--steps': Input should be greater than or equal to 3, got '1'; see: gradwire doctor --help",
    ),
    ("lab --timeout nan -- true", 2, "lab: `timeout` must be a number of seconds above 0, got nan"),
    # rates
    ("lab --rate 1kbit", 2, f"{LAB} '1kbit'; ask for one in between"),
    ("lab --rate 1000gbit", 2, f"{LAB} '1000gbit'; ask for one in between"),
    ("lab --link 1=1kbit", 2, f"{LAB} '1kbit'; ask for one in between"),
    ("bench step --rate 1kbit", 2, f"{LAB} '1kbit'; ask for one in between"),
    ("calibrate --rate 10", 2, f"{UNIT} '10'"),
    ("validate steps.jsonl --place 4@10gib", 2, f"{UNIT} '10gib'"),
    ("predict --model resnet50 --batch 64 --gpus 16 --bandwidth nan", 2, f"{UNIT} 'nan'"),
    (
        "predict --model resnet50 --batch 64 --gpus 16 --bandwidth 10GB/s",
        2,
        "a rate is told in bits a second, got bytes in '10GB/s'; write 80Gbit/s",
    ),
    # names
    ("codecs topkk", 2, "no codec named 'topkk'; did you mean topk or topkc or gtopk?"),
    ("calibrate --codec topkk --rate loopback", 2, "no codec named 'topkk'; did you mean topk or topkc or gtopk?"),
    (
        "size --model resnet20 --codec 'topk('",
        2,
        "codec spec 'topk(' cannot be read; write a name, or a name with literal arguments such as "
        '"topk(ratio=0.01)"',
    ),
    ("size --model resnet20 --codec 'topk(rato=1)'", 2, "topk: has no parameter `rato`; did you mean ratio?"),
    (
        "calibrate --model resnt20 --rate loopback",
        2,
        "no model named 'resnt20'; did you mean resnet20 or resnet50? All names: gradwire size --help",
    ),
    (
        "calibrate --model bad_nets:none --rate loopback",
        2,
        "model 'bad_nets:none': module 'bad_nets' has no 'none'; name a function or class in it",
    ),
    (
        "bench step --model bad_nets:two --rate loopback",
        2,
        "model 'bad_nets:two': a step needs inputs, it has no `example(batch)`, and none that was tried fits; "
        f"add a line where it is made, {EXAMPLE}",
    ),
    (
        "calibrate --model bad_nets:tensor --rate loopback",
        2,
        "model 'bad_nets:tensor': `example(batch)` must return a tuple of tensors, got Tensor; "
        f"add a line where it is made, {EXAMPLE}",
    ),
    ("calibrate --device tpu", 2, "calibrate: `device` must be 'cpu' or 'cuda', got 'tpu'"),
    (f"predict {SETUP} --strategy foo", 2, f"no strategy named 'foo'; known: {STRATEGIES}"),
    (f"predict {SETUP} --mode foo", 2, "`mode` must be 'overlap' or 'after_backward', got 'foo'"),
    (f"advise {SETUP} --task image", 2, f"advise: `task` must be {TASKS}, got 'image'"),
    (f"whatif --sweep foo=1:2 {SETUP}", 2, f"whatif: no quantity named 'foo'; known: {QUANTITIES}"),
    (
        "reproduce tabl2",
        2,
        "reproduce: no paper, claim, table or figure 'tabl2'; did you mean table2 or table3 or table1?",
    ),
    ("predct", 2, "No such command 'predct'. Did you mean 'predict'; see: gradwire --help"),
    ("bench", 2, "Missing command; see: gradwire bench --help"),
    ("codecs --jsn", 2, "No such option: --jsn (Possible options: --json); see: gradwire codecs --help"),
    ("lab --hosts 2 --no-verify -- none", 2, "lab: cannot start 'none': No such file or directory"),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with everything that is wrong, and one file that is right."""
    record = Record(
        kind="step",
        what={
            **{"model": "shapes", "batch": 4, "hosts": 2},
            **{"ranks_per_host": 1, "bits_per_second": 1e9, "configuration": "fp32 DDP"},
        },
        command="gradwire bench step",
        time="2026-01-02T03:04:05+00:00",
        commit="unknown",
        dirty=False,
        environment={},
        unit="seconds",
        quantiles=Quantiles.of([0.1]),
        samples=(0.1,),
        outcome={"parts_seconds": {}, "sent_bytes": 1, "interface_bytes": 1},
    )
    line = record.to_json()
    files = {
        "steps": f"{line}\n",
        "torn": f"{line}\n{line[:80]}",
        "middle": f"{line}\n{line[:80]}\n{line}\n",
        "empty": "",
        "text": "hello\n",
        "object": '{"a": 1}\n',
        "list": "[1, 2]\n",
        "bare": json.dumps(json.loads(line) | {"what": {}}) + "\n",
        "hosts": line.replace('"hosts": 2', '"hosts": "2"') + "\n",
        "rate": line.replace('"bits_per_second": 1000000000.0', '"bits_per_second": "1gbit"') + "\n",
        "model": line.replace('"shapes"', '["shapes"]') + "\n",
        "nan": line.replace('"samples": [0.1]', '"samples": [NaN]') + "\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "binary.jsonl").write_bytes(b"\x7fELF\xb7\x00\n\xff")
    (tmp_path / "there.toml").write_text('name = "mine"\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad_nets.py").write_text(
        "import torch\n"
        "def two():\n    return torch.nn.Bilinear(2, 2, 2)\n"
        "def tensor():\n    net = torch.nn.Linear(4, 4)\n"
        "    net.example = lambda batch: torch.ones(batch, 4)\n    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.filterwarnings("default::gradwire.core.errors.GradwireWarning")
@pytest.mark.parametrize("line, code, message", SLIPS, ids=[line for line, _, _ in SLIPS])
def test_a_slip_gets_a_sentence(line, code, message, here, capsys):
    before = sorted(here.rglob("*"))
    assert main(shlex.split(line)) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"gradwire: {message}\n".replace("{dir}", str(here))
    assert [p for p in sorted(here.rglob("*")) if "__pycache__" not in p.parts] == before


def test_too_much_memory_is_refused_before_it_is_taken(here, capsys, monkeypatch):
    monkeypatch.setattr("gradwire.core.environment.memory_bytes", lambda: 24 * 10**9)
    assert main(["bench", "encode", "--size", "99999999999999"]) == 2
    assert capsys.readouterr().err == (
        "gradwire: bench encode: `size` 99999999999999 needs about 2400000 GB of memory, and there are 24 GB; "
        "choose at most 1000000000\n"
    )


@pytest.mark.parametrize("rate", ["10Gbps", "10gbits", "10 Gbit/s", "10gbit", "10Gb/s"])
def test_a_rate_as_people_type_it(rate, capsys):
    assert main(["predict", "--model", "resnet50", "--batch", "64", "--gpus", "16", "--bandwidth", rate]) == 0
    assert json.loads(capsys.readouterr().out)["setup"]["bits_per_second"] == 1e10


@pytest.mark.filterwarnings("default::gradwire.core.errors.GradwireWarning")
def test_a_torn_last_line_leaves_the_rest(here, capsys):
    assert main(["report", "torn.jsonl"]) == 0
    told = capsys.readouterr()
    assert told.err == f"gradwire: {TORN}\n"
    assert json.loads(told.out)["records"] == {"step": 1}


def test_the_help_lists_the_strategies_that_are_taken(capsys):
    from gradwire.core.baselines import PREDICTED_STRATEGIES

    assert main(["predict", "--help"]) == 0
    assert ", ".join(PREDICTED_STRATEGIES) in " ".join(capsys.readouterr().out.split())


def test_a_full_disk_is_no_defect_of_gradwire():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gradwire", "reproduce"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == (
        "gradwire: the system refused (No space left on device); check the path, its permissions and the space left; "
        "GRADWIRE_TRACEBACK=1 shows where\n"
    )


def test_control_c_ends_a_measurement_with_one_line(here):
    """Like a shell, the test interrupts everything that the command started."""
    command = [sys.executable, "-m", "gradwire", "bench", "step", "--model", "shapes", "--codec", "topk"]
    place = ["--hosts", "2", "--rate", "loopback"]
    running = subprocess.Popen([*command, *place], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stderr is not None
    assert running.stderr.readline() == "measuring: 2 hosts, loopback, shapes, batch 4\n"
    os.killpg(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert (running.returncode, told) == (130, "gradwire: interrupted\n")
