"""`gradwire advise`: verdict first, a table that fits, everything in JSON, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gradwire.cli import main
from gradwire.planner.workload import shipped

SLOW = ["--model", "resnet50", "--batch", "64", "--gpus", "64", "--gpus-per-node", "4", "--bandwidth", "1gbit"]
BASELINE_ROWS = {"none": "FP32 DDP", "fp16": "FP16 DDP", "bf16": "BF16 DDP"}
PAPER = ["--hardware", "v100-paper-measured"]  # of few codecs, and fixed for good


def answer(capsys, *arguments):
    assert main(["advise", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def page(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")  # no bold
    assert main(["advise", *arguments]) == 0
    return capsys.readouterr().out


def test_json_has_everything(capsys):
    found = answer(capsys, *SLOW)
    assert set(found) == {
        *("setup", "verdict", "baselines", "ranking", "apart", "explanations"),
        *("bandwidth", "gpus", "compression", "certainty", "remarks"),
    }
    assert found["setup"]["bits_per_second"] == 1e9
    assert found["verdict"]["kind"] == "worth it"
    assert found["verdict"]["line"].startswith("gradwire.attach(model, ")
    assert len(found["ranking"]) + len(found["apart"]) == len(shipped().codecs()) - 3
    assert {r["standing"] for r in found["ranking"]} == {"safe"}
    assert {r["standing"] for r in found["apart"]} == {"lossy", "untried"}
    assert [b["codec"] for b in found["baselines"]] == ["none", "fp16", "bf16"]
    assert len(found["explanations"]) == 3
    assert set(found["certainty"]["inputs"]) >= {"measured", "assumed", "traced"}


def test_a_network_without_limits_needs_no_codec(capsys):
    found = answer(capsys, *SLOW[:-1], "10000gbit", *PAPER, "--any")
    assert found["verdict"]["kind"] == "not worth it"
    assert found["verdict"]["sentence"].startswith("Not worth it: keep FP32 DDP. The fastest codec, ")
    assert found["compression"]["ratio"] == 1


def test_only_some_codecs(capsys):
    found = answer(capsys, *SLOW, "--codec", "topk", "--codec", "powersgd(rank=4)")
    assert sorted(r["codec"] for r in found["apart"]) == ["powersgd", "topk"]
    assert found["verdict"]["kind"] == "not worth it"
    assert found["verdict"]["sentence"].startswith("Not worth the risk: keep FP16 DDP. In our trainings no codec ")
    found = answer(capsys, *SLOW, "--codec", "topk", "--codec", "powersgd(rank=4)", "--any")
    assert sorted(r["codec"] for r in found["ranking"]) == ["powersgd", "topk"]
    assert not found["apart"]


def test_times_are_given_with_their_unit(capsys):
    found = answer(capsys, *SLOW, "--latency", "2ms", "--backward", "500ms", "--accumulate", "2")
    assert found["setup"]["latency"] == 0.002
    assert found["ranking"][0]["parts"]["backward"] == pytest.approx(1.0)
    assert "assumed: as you gave it" in [i["source"] for i in found["certainty"]["inputs"]["assumed"]]


def test_the_page_begins_with_the_verdict_and_fits_80_columns(capsys, monkeypatch):
    verdict = answer(capsys, *SLOW, "--any")["verdict"]
    text = page(capsys, monkeypatch, *SLOW, "--top", "60", "--any")
    assert max(map(len, text.splitlines())) <= 80
    title, _, told = text.partition("\n\n")
    assert title == "resnet50, batch 64, 64 GPUs in nodes of 4, 1 Gbit/s a node, profile h200"
    assert " ".join(told.split()).startswith(f"{verdict['sentence']} {verdict['line']} ")
    for heading in ("Why", "What would change it", "How sure"):
        assert f"\n{heading}\n" in text
    for codec in shipped().codecs():
        assert codec in BASELINE_ROWS or f"\n{codec} " in text


def test_what_hurts_is_listed_apart_with_the_reason(capsys, monkeypatch):
    text = " ".join(page(capsys, monkeypatch, *SLOW, "--top", "3").split())
    assert "Apart: lossy or not tried, fastest first - " in text
    (topk,) = (r for r in answer(capsys, *SLOW)["apart"] if r["codec"] == "topk(ratio=0.001)")
    assert topk["standing"] == "lossy"
    assert f"- topk(ratio=0.001), {topk['step_seconds'] * 1e3:.3g} ms: {topk['evidence']}" in text
    assert main(["advise", *SLOW, "--task", "chess"]) == 2
    assert "`task` must be 'images' or 'language'" in capsys.readouterr().err
    assert main(["advise", *SLOW, "--max-loss", "nan"]) == 2
    assert "`max_loss` must be points from 0 to 100, such as 0.5" in capsys.readouterr().err


def test_rows_notes_and_marks(capsys, monkeypatch):
    text = page(capsys, monkeypatch, *SLOW, *PAPER, "--top", "3", "--any")
    known = [r for r in answer(capsys, *SLOW, *PAPER, "--any")["ranking"] if r["step_seconds"] is not None]
    rows = [line.split()[0] for line in text.partition("less sent")[2].splitlines()[2:5]]
    assert rows == [r["codec"] for r in known[:3]]
    assert f"3 of {len(known)} codecs; more with --top {len(known)}, everything with --json." in text
    assert "Not measured on this hardware: adaptivethreshold, blockint, " in text
    for label in BASELINE_ROWS.values():
        assert f"\n{label} " in text
    marked = page(capsys, monkeypatch, *SLOW, "--codec", "threshold", "--any")
    assert "\nthreshold ~ " in marked
    assert "\n~ sizes depend on the data, estimated from noise.\n" in marked


def test_the_hook_of_torch_is_two_lines_that_can_be_copied(capsys, monkeypatch):
    text = page(capsys, monkeypatch, *SLOW[:-1], "30gbit", *PAPER, "--codec", "topk", "--any")
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as hooks")
    assert lines[start + 1] == "model.register_comm_hook(None, hooks.fp16_compress_hook)"


def test_one_gpu(capsys, monkeypatch):
    text = page(capsys, monkeypatch, "--model", "resnet50", "--batch", "64", "--gpus", "1", "--bandwidth", "1gbit")
    assert text.startswith("resnet50, batch 64, 1 GPU, 1 Gbit/s a node, profile h200\n\nNothing to compress: ")
    assert "\nWhy\n" not in text


def test_it_answers_without_torch():
    code = (
        "import sys; from gradwire.cli import main; "
        f"print(main(['advise', *{SLOW!r}]), 'torch' in sys.modules, 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 False False", done.stderr


def changed(name, value):
    position = SLOW.index(name) + 1
    return [*SLOW[:position], value, *SLOW[position + 1 :]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (changed("--model", "resnet51"), "gradwire: no model named 'resnet51'; did you mean resnet50"),
        (changed("--batch", "0"), "gradwire: `batch` must be a whole number of at least 1, got 0"),
        (changed("--gpus", "0"), "gradwire: `gpus` must be a whole number of at least 1, got 0"),
        (
            changed("--gpus", "63"),
            "gradwire: 63 GPUs do not fill nodes of 4; type a multiple, such as 60 or 64, or --gpus-per-node 1",
        ),
        (
            changed("--bandwidth", "10"),
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '10'",
        ),
        (
            changed("--bandwidth", "-1gbit"),
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '-1gbit'",
        ),
        (
            [*SLOW, "--backward", "120"],
            "gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got '120'",
        ),
        ([*SLOW, "--hardware", "h201"], "gradwire: no hardware profile 'h201', and no file of that name; did you mean"),
        ([*SLOW, "--codec", "powersg"], "gradwire: no codec named 'powersg'; did you mean powersgd?"),
        ([*SLOW, "--top", "0"], "gradwire: advise: `top` must be a whole number of at least 1, got 0"),
        (SLOW[:-2], "gradwire: Missing option '--bandwidth'; see: gradwire advise --help"),
    ],
)
def test_bad_requests(capsys, arguments, message):
    assert main(["advise", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
