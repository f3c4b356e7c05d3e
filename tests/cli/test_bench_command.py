"""`gradwire bench encode` on the command line. The measuring is in tests/laboratory/bench/test_encode.py."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from gradwire.cli import main
from gradwire.cli.bench.encode import table
from gradwire.core.records import load
from gradwire.laboratory.bench.encode import Measured


def test_json_when_piped_and_one_record_for_each_codec_and_size(capsys, tmp_path):
    path = tmp_path / "encode.jsonl"
    arguments = ["--codec", "fp16", "--codec", "topk", "--size", "5000", "--size", "20000", "--repeats", "1"]
    assert main(["bench", "encode", *arguments, "--record", str(path)]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = [(m["codec"], m["elements"]) for m in answer["measured"]]
    assert found == [("fp16", 5120), ("topk", 5120), ("fp16", 20480), ("topk", 20480)]
    assert [(r.what["codec"], r.what["elements"]) for r in load(path)] == found
    assert {r.command for r in load(path)} == {answer["command"]}
    first = answer["measured"][0]
    assert first["encode_bytes_per_second"] == pytest.approx(4 * 5120 / first["seconds"]["encode"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--codec", "powersg"], "gradwire: no codec named 'powersg'; did you mean powersgd?"),
        (["--size", "0"], "gradwire: bench encode: `size` must be a whole number of at least 1, got 0"),
        (
            ["--record", "."],
            "gradwire: bench encode: `--record` must name a file that can be written, got '.'; choose another",
        ),
    ],
)
def test_bad_requests_are_refused_at_once(capsys, arguments, message):
    assert main(["bench", "encode", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", message + "\n")


def test_the_table_shows_rates_and_ratios():
    seconds = {"encode": (0.001,) * 3, "reduce": (0.0,) * 3, "decode": (0.003,) * 3}
    plain = {name: tuple(5 * s for s in samples) for name, samples in seconds.items()}
    one = Measured("topk(ratio=0.01)", 1_000_000, "all_gather", 50_000, (0.0005,) * 3, seconds, plain)
    screen = Console(file=io.StringIO(), width=120)
    screen.print(table([one]))
    rows = [line.split() for line in screen.file.getvalue().splitlines() if "topk" in line]
    assert rows == [["topk(ratio=0.01)", "1,000,000", "1", "0", "3", "4.00", "1.00", "5.0", "8.0"]]
