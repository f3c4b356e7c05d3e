"""The report: a section for what is there, none for what is not, and a sentence for what cannot be used."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys

import pytest
from invented import (
    NASTY,
    Page,
    accuracy,
    collective,
    demo,
    encode,
    everything,
    prediction,
    record,
    run,
    step,
    training,
)

from gradwire.core.errors import ConfigError
from gradwire.core.records import append
from gradwire.laboratory.report import document, load, verdict
from gradwire.planner.quality import standing

ALL = (
    "Verdict",
    "Step times",
    "Scaling",
    "Predicted against measured",
    "Accuracy",
    "What encoding costs",
    "One gradient",
    "Demo",
    "Where the numbers come from",
)
KINDS = {  # by itself -> the sections between verdict and provenance
    "step": ([*run({"signsgd": 0.02})], ["Step times"]),
    "prediction": ([prediction("signsgd", 0.11, 0.1)], ["Predicted against measured"]),
    "accuracy": ([accuracy("signsgd", 0.9)], ["Accuracy"]),
    "encode": ([encode("signsgd", 0.01)], ["What encoding costs"]),
    "collective": ([collective("signsgd", 0.1)], ["One gradient"]),
    "demo": ([demo("fp32 DDP", 0.3), demo("efsignsgd", 0.1)], ["Demo"]),
    "training": ([training(100, 0.05)], ["Your trainings"]),
}


@pytest.fixture
def made(tmp_path):
    def make(records, **options):
        append(tmp_path / "some.jsonl", records)
        return document.make([tmp_path / "some.jsonl"], **options)

    return make


@pytest.mark.parametrize("module", [load, verdict])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0


def test_every_kind_has_its_section(made):
    report = made([*everything(), record("tests", {}, 1.0, {})])
    assert report.sections == ALL
    assert report.left_out == {"tests": 1}
    assert report.records == {"accuracy": 2, "collective": 2, "demo": 3, "encode": 2, "prediction": 4, "step": 18}
    found = Page(report.html)
    assert found.headings == list(ALL)
    assert {tag for tag, _ in found.tags}.isdisjoint({"img", "link", "iframe"})
    assert found.attributes("src") == []
    assert found.attributes("href") == []
    assert len(report.html) < 200_000


@pytest.mark.parametrize("kind", KINDS)
def test_sections_without_records_are_left_out(kind, made):
    records, wanted = KINDS[kind]
    report = made(records)
    assert report.sections == ("Verdict", *wanted, "Where the numbers come from")
    assert Page(report.html).headings == list(report.sections)
    assert set(KINDS) == set(load.KINDS)


def test_the_verdict_says_where_it_pays_and_where_not(made):
    told = Page(made(everything()).html).text
    assert "Compression pays in 2 of 3 set-ups measured, and in 1 it does not." in told
    assert "Where it does not pay: net, 4 hosts, 2 Gbit/s (best: signsgd, 0.86 times as fast as DDP)." in told
    assert "Fastest where it pays: signsgd in 2." in told
    assert "over 4 settings the predicted step is off by 10\xa0% in the middle and by 50\xa0% at most" in told
    assert "Demo, a processor, 2 cores, 200 Mbit/s: efsignsgd takes 100 ms a step against 200 ms of fp16" in told
    assert "Steps are made on a CPU" in told
    assert f"Not recommended, though fastest somewhere: signsgd: {standing('signsgd', None).sentence}." in told


@pytest.mark.parametrize(
    ("seconds", "rates", "words"),
    [
        (0.01, [1e9], "pays in the one set-up"),
        (0.2, [1e9], "does not pay in the one set-up"),
        (0.01, [1e8, 1e9], "pays in all 2 set-ups"),
        (0.2, [1e8, 1e9], "pays in none of the 2 set-ups"),
    ],
)
def test_the_verdict_of_all_and_of_none(seconds, rates, words, made):
    told = Page(made([r for rate in rates for r in run({"signsgd": seconds}, rate=rate)]).html).text
    assert f"Compression {words} measured." in told
    hurts = standing("signsgd", None).sentence
    assert "None of these codecs kept its quality in all our trainings and was tried on such tasks." in told
    assert f"Not recommended, though fastest somewhere: signsgd: {hurts}." in told


def test_the_verdict_with_codecs_that_kept_their_quality_alone(made):
    slow, fast = (run({"signsgd": 0.01, "eightbit": s}, rate=r) for s, r in ((0.02, 1e8), (0.2, 1e9)))
    told = Page(made([*slow, *fast]).html).text
    assert "Fastest where it pays: signsgd in 2." in told
    assert "With those that kept their quality in our trainings (eightbit) it pays in 1 of 2. Not recommended" in told
    assert "measured. With codecs that kept their quality in our trainings, it pays in 1." in told
    assert "a processor, 2 cores2 of 21 of 23 of 46.0× (signsgd)" in told  # the table's one line


def test_only_the_verdict_is_open(made):
    report = made(everything())
    assert report.html.count('<details class="fold chapter">') == len(ALL) - 1
    assert '<section id="verdict">\n<h2>' in report.html
    assert "0.9448972705069223" not in report.html


def test_errors_of_predictions_by_configuration(made):
    text = re.sub(r"\s+", " ", Page(made(everything()).html).text.partition("configurationsettings")[2])
    assert "fp32 DDP110.0 %10.0 %1.10" in text
    assert "signsgd310.0 %50.0 %1.05" in text
    assert "all410.0 %50.0 %1.0" in text
    assert "What the profile was calibrated on hosts 2, rate 1 Gbit/s, share 0.945." in text


def test_breakdowns_end_at_the_median(made):
    bars = [p for p in Page(made(run({"signsgd": 0.02})).html).pictures if p["kind"] == "bars"]
    whole, thread = bars
    assert [p["label"] for p in whole["parts"]] == ["forward", "backward", "wait", "optimizer", "apart"]
    assert [p["label"] for p in thread["parts"]] == ["encode", "communicate", "decode"]
    place = whole["groups"].index("signsgd")
    assert sum(p["values"][place] for p in whole["parts"]) == pytest.approx(0.02)
    assert whole["ends"][place] == "20 ms · 3.00×"
    assert thread["groups"] == ["signsgd"]  # DDP tells nothing of the kind


def test_ratios_do_not_cross_machines(made):
    fast = [step("fp16 DDP", 0.001, cpu="another", rate=5e8), step("fp32 DDP", 0.001, cpu="another", rate=5e8)]
    pictures = Page(made([*run({"signsgd": 0.02}), *run({"signsgd": 0.01}, rate=5e8), *fast]).html).pictures
    curves = next(p for p in pictures if p["kind"] == "chart" and p["title"].startswith("Speed-up"))
    assert next(s for s in curves["series"] if s["label"] == "signsgd")["text"] == ["6.00", "3.00"]


def test_every_sheet_of_curves_can_be_chosen(made):
    """Also where only unusual runs were measured, and batch sizes differ."""
    where = [{"rate": rate, "batch": batch} for rate in (1e8, 1e9) for batch in (1, 2)]
    found = Page(made([r for w in where for r in run({"signsgd": 0.02}, mode="after_backward", **w)]).html)
    values = found.attributes("data-values")
    assert len(values) == len(set(values)) == 4 + 2 * 3  # runs; batch sizes by what is shown
    assert '["a processor, 2 cores","net","rate","4 hosts, batch 2","speed-up"]' in values


def test_provenance_has_file_command_commit_and_hardware(made):
    told = Page(
        made([*run({"signsgd": 0.02}, dirty=True), encode("topk", 0.1, command="gradwire bench encode -x")]).html
    ).text
    assert "some.jsonl: 5 records of kind step, 1 records of kind encode" in told
    assert "5 records of kind step: 2026-01-02, gradwire bench step, commit 0123456789ab with uncommitted" in told
    assert "1 records of kind encode: 2026-01-02, gradwire bench encode -x, commit 0123456789ab; a processor" in told


def test_the_newest_record_of_an_encoding_is_shown(made):
    later = encode("signsgd", 0.5, time="2026-02-02T00:00:00+00:00")
    told = Page(made([later, encode("signsgd", 0.01)]).html).text
    assert "signsgd250" in told
    assert "signsgd5" not in told.replace("signsgd250", "")


def test_a_file_given_twice_counts_once_and_a_folder_stands_for_its_files(tmp_path):
    append(tmp_path / "a.jsonl", run({"signsgd": 0.02}))
    assert document.make([tmp_path, tmp_path / "a.jsonl"]).records == {"step": 5}


def test_a_title_of_ones_own(made):
    found = Page(made(run({"signsgd": 0.02}), title=NASTY).html)
    assert found.text.strip().startswith(NASTY)


def test_it_needs_neither_torch_nor_matplotlib(tmp_path):
    append(tmp_path / "a.jsonl", everything())
    code = (
        "import sys; from gradwire.laboratory.report.document import make; import gradwire.laboratory.report.plots; "
        f"make([{str(tmp_path)!r}]); print(sorted({{'torch', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


# -------------------------------------------------------------------- what cannot be used


def fails(paths, message):
    with pytest.raises(ConfigError) as caught:
        document.make(paths)
    assert str(caught.value) == message


def test_no_file():
    make = "make some, as in: gradwire bench step --record steps.jsonl"
    fails([], f"report: name at least one file of records; {make}")
    fails(["nowhere.jsonl"], f"report: there is no file 'nowhere.jsonl'; check the name, or {make}")


def test_files_without_records(tmp_path):
    make = "make some, as in: gradwire bench step --record steps.jsonl"
    fails([tmp_path], f"report: the folder {str(tmp_path)!r} has no .jsonl file; check the name, or {make}")
    path = tmp_path / "a.jsonl"
    path.write_text("")
    fails([path], f"report: {str(path)!r} is empty, so there is nothing to report; {make}")
    path.write_bytes(b"\xff\xfe\x00")
    fails([path], f"a.jsonl, line 1: JSON was wanted, got bytes that are no text; {make}")
    path.unlink()
    append(path, [record("tests", {}, 1.0, {})] * 2)
    fails(
        [path],
        "report: there is no record of a kind that a report shows (accuracy, collective, demo, encode, prediction, "
        f"step, training), only 2 of kind tests; {make}",
    )


def test_records_that_lack_something(tmp_path):
    append(tmp_path / "a.jsonl", [record("step", {"model": "net"}, 1.0, {"sent_bytes": 1})])
    fails(
        [tmp_path / "a.jsonl"],
        "a.jsonl, line 1: a record of kind step is without what.batch, what.hosts, what.ranks_per_host, "
        "what.bits_per_second, what.configuration, outcome.parts_seconds, outcome.interface_bytes; "
        "records are never edited, so take the file from its source again",
    )
    (tmp_path / "b.jsonl").write_text("not json\n")
    with pytest.raises(ConfigError, match=r"^b\.jsonl, line 1: "):
        document.make([tmp_path / "b.jsonl"])
