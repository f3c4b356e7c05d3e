"""Pages cannot drift: generated ones are up to date, snippets run, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/adaptive.md",
    "docs/architecture.md",
    "docs/autopilot.md",
    "docs/cli.md",
    "docs/codecs.md",
    "docs/doctor.md",
    "docs/encode.md",
    "docs/engines.md",
    "docs/faults.md",
    "docs/findings.md",
    "docs/frameworks.md",
    "docs/grace.md",
    "docs/lab.md",
    "docs/network.md",
    "docs/own-codec.md",
    "docs/pages.md",
    "docs/prediction.md",
    "docs/sharded.md",
    "docs/start.md",
    "docs/throughputs.md",
    "docs/traps.md",
    "docs/utility.md",
    "results/README.md",
    *(str(p.relative_to(ROOT)) for folder in ("api", "codecs") for p in sorted((ROOT / "docs" / folder).glob("*.md"))),
]
OWN = "docs/own-codec.md"
GENERATED = [
    "README.md",
    "docs/autopilot.md",
    "docs/cli.md",
    "docs/codecs.md",
    "docs/codecs/baseline.md",
    "docs/codecs/hybrid.md",
    "docs/codecs/lowrank.md",
    "docs/codecs/quantization.md",
    "docs/codecs/sparsification.md",
    "docs/doctor.md",
    "docs/encode.md",
    "docs/faults.md",
    "docs/findings.md",
    "docs/frameworks.md",
    "docs/gpu.md",
    "docs/network.md",
    "docs/prediction.md",
    "docs/throughputs.md",
    "docs/utility.md",
]

# What the README's snippets take for granted: a model under DDP, here with a process group of one.
PRELUDE = """
import warnings
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradwire
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
warnings.filterwarnings("ignore", message=".*has one rank, so there is nothing to send")
handle = gradwire.attach(DistributedDataParallel(torch.nn.Linear(4, 2)), "topk(ratio=0.01)")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
rank = 0

class MyCompressor:
    def __init__(self, ratio): pass
    def compress(self, tensor, name): return [tensor], None
    def decompress(self, tensors, ctx): return tensors[0]

class MyResidual:
    def compensate(self, tensor, name): return tensor
    def update(self, tensor, name, compressor, tensors, ctx): pass
"""


# What docs/adaptive.md takes for granted beside that. A model is attached once, so each snippet gets its own.
TRAINING = """
model = DistributedDataParallel(torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
epochs, rates, step = 2, [0.1, 0.1, 0.01], 0
accordion = gradwire.Accordion(low="powersgd(rank=4)", high="powersgd(rank=1)")
handle = gradwire.attach(
    DistributedDataParallel(torch.nn.Linear(64, 32)), controller=accordion, optimizer=optimizer
)
loader = [torch.randn(4, 64) for _ in range(16)]

def train_one_epoch():
    model(loader[0]).mean().backward()
    optimizer.step()

def grouped(batches, count):
    return [batches[i : i + count] for i in range(0, len(batches), count)]
"""


def render():
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_page_is_checked():
    assert set(render().makers()) == {ROOT / page for page in GENERATED}


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_up_to_date(page):
    text = render().makers()[ROOT / page]()
    assert (ROOT / page).read_text(encoding="utf-8") == text, f"{page} is out of date; run: make docs"


def test_check_says_what_is_out_of_date(monkeypatch, capsys):
    module = render()
    monkeypatch.setattr(module, "pages", lambda: {ROOT / "README.md": "something else"})
    assert module.main(["--check"]) == 1
    assert capsys.readouterr().err == "README.md is out of date; run: make docs\n"


def test_every_command_and_option_is_documented():
    from gradwire.cli.app import command

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, entry in command().commands.items():
        section = page.partition(f"## gradwire {name}\n")[2].partition("\n## ")[0]
        assert all(option in section for parameter in entry.params for option in parameter.opts if "-" in option)
        assert f"`gradwire {name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def snippets(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


RUN_HERE = ("README.md", "docs/start.md", "docs/adaptive.md", "docs/grace.md", "docs/autopilot.md")
# in turn: on emulated hosts, tests/laboratory/hosts/test_run.py; below; by four ranks, tests/integrations/test_fsdp.py;
# tests/test_training_page.py; by two ranks, tests/frameworks/test_frameworks_page.py
RUN_ELSEWHERE = ("docs/lab.md", OWN, "docs/sharded.md", "docs/api/training.md", "docs/frameworks.md")


def test_every_block_of_python_is_run():
    everywhere = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")]
    found = {str(page.relative_to(ROOT)) for page in everywhere if "```py" in without_examples(page)}
    assert found == {*RUN_HERE, *RUN_ELSEWHERE}


def without_examples(page):
    """A page without what comes from docstrings, whose examples other tests run."""
    return re.sub(r"```pycon\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_python_snippets_run(tmp_path):
    ours, start, adaptive, grace, autopilot = (snippets(page) for page in RUN_HERE)
    assert (len(ours), len(start), len(adaptive), len(grace), len(autopilot)) == (3, 6, 7, 1, 2)
    own_model = "model = DistributedDataParallel(torch.nn.Linear(4, 2))"  # a model is attached once
    trained = [TRAINING + snippet for snippet in adaptive]
    asked = "assert small()(*small().example(3)).shape == (3, 10)"  # what the command line does with it
    steps = [PRELUDE, *ours, *start, asked, own_model, *grace, own_model, *autopilot, *trained]
    steps.append("dist.destroy_process_group()")
    printed = run(steps, tmp_path)
    assert "{'weight': 'powersgd(rank=4)'} ()\n" in printed
    assert "{'weight': 'powersgd(rank=1)'}\nnorm 8 to 7 in 1 epochs: 0.12 < eta\n" in printed
    assert "torch.Size([256, 128]) 4608 bytes sent by each worker" in printed
    assert "tensor([1., 1., 1.])" in printed


def run(steps, folder):
    """In a process of its own: snippets register codecs, which other tests must not meet."""
    code = "\n".join(steps)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# What `gradwire check` does, for all codecs that a page defines.
CHECKED = """
from gradwire import conformance
from gradwire.core.codec import codecs
from gradwire.conformance.target import chosen
own = [name for name in codecs.names() if not codecs.cls(name).__module__.startswith("gradwire.")]
problems = [o.problems for n in own for codec in chosen(n) for o in conformance.run(codec) if not o.passed]
assert not problems, problems
print("checked:", *own)
"""


def test_the_codec_of_the_readme_passes_all_checks(tmp_path):
    (codec,) = [snippet for snippet in snippets("README.md") if "gradwire.Codec" in snippet]
    assert run([codec, CHECKED], tmp_path) == "tensor([1., 1., 1.]) 3015\nchecked: my_int8\n"


def test_the_codecs_of_the_tutorial_pass_all_checks(tmp_path):
    printed = run([*snippets(OWN), CHECKED], tmp_path)
    assert printed.endswith("\nchecked: my_int8 random_half shared_step\n")
    assert re.match(r"3015 bytes sent by each worker, normalised error 0\.0\d\d\n", printed), printed
    page = " ".join((ROOT / OWN).read_text(encoding="utf-8").split())
    assert printed.splitlines()[1] in page  # the sentence for a slip


def test_the_tutorial_shows_what_new_codec_writes():
    from gradwire.cli.new_codec import filled

    page = (ROOT / OWN).read_text(encoding="utf-8")
    block = re.search(r"<!-- template:begin -->\n```python\n(.*?)```\n<!-- template:end -->", page, re.DOTALL)[1]
    assert block == filled("codec.py.txt", {"name": "my_int8", "cls": "MyInt8"})
    assert '    my_int8 = "gradwire_my_int8:MyInt8"\n' in page


def test_every_command_line_of_the_tutorial_is_one():
    from gradwire.cli.app import command

    lines = (ROOT / OWN).read_text(encoding="utf-8").replace("\\\n", "")
    told = [shlex.split(line) for line in re.findall(r"^    gradwire (.*)", lines, re.MULTILINE)]
    assert {words[0] for words in told} == {"new-codec", "check", "size", "bench", "predict"}
    for words in told:
        entry = command()
        while hasattr(entry, "commands"):
            entry, words = entry.commands[words[0]], words[1:]
        known = {option for parameter in entry.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_the_site_has(page):
    """`make docs` builds the site in an environment of its own; here docs/hooks.py is asked what it copies."""
    hooks = ast.parse((ROOT / "docs" / "hooks.py").read_text())
    named = {node.targets[0].id: node.value for node in hooks.body if isinstance(node, ast.Assign)}
    moved, copied = (ast.literal_eval(named[name]) for name in ("MOVED", "COPIED"))
    there = {*moved, "docs", "results", *(str(p.relative_to(ROOT)) for part in copied for p in ROOT.glob(part))}
    there |= {str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*") if p.suffix != ".py"}
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        found = link.startswith("https://") or str((folder / link).resolve().relative_to(ROOT)) in there
        assert found, f"{page} links {link}, which is not there, or which docs/hooks.py does not copy"


def test_records_are_where_their_page_says():
    for name in re.findall(r"`([^`\s]+\.jsonl)`", (ROOT / "results/README.md").read_text(encoding="utf-8")):
        assert list((ROOT / "results").glob(name)), name


def test_every_page_is_in_the_sites_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    moved = {"README.md": "index.md", "results/README.md": "results/records.md"}
    moved |= {name: name.lower() for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
    for page in PAGES:
        assert f" {moved.get(page, page.removeprefix('docs/'))}\n" in nav, page


def test_every_public_name_is_on_a_page_of_the_api():
    import gradwire

    text = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "api").glob("*.md"))
    errors = "::: gradwire.core.errors\n" in text  # all of them at once
    for name in gradwire.__all__:
        value = getattr(gradwire, name)
        listed = errors and isinstance(value, type) and issubclass(value, gradwire.GradwireError)
        assert listed or f"::: gradwire.{name}\n" in text, name


def test_docstrings_become_markdown():
    import doctest

    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import markup
    finally:
        sys.path.remove(str(ROOT / "docs"))
    assert doctest.testmod(markup).failed == 0
    for page in (ROOT / "docs" / "codecs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert ".. math::" not in text
        assert "\n>>>" not in re.sub(r"```pycon\n.*?```", "", text, flags=re.DOTALL)


def test_the_readme_is_short_and_its_numbers_have_a_record():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    newest = max((ROOT / "results").glob("tests_h200_*.jsonl")).name
    assert f"(results/{newest})" in text.partition("## Status")[2]
    network = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    wins = re.findall(r"(?<!to )\b\d+ of \d+(?=;|\.)", text.partition("## Ask")[0])
    assert len(wins) == 2
    assert all(f"**{w}** beat FP16 DDP" in network for w in wins)
    rows = re.findall(r"\| codecs and set-ups that beat FP16 DDP .*", network)
    told = re.findall(r"(\d+) to (\d+) of\s(\d+)(?= settings)?[^.;]*? in three sessions", text)
    assert len(told) == len(rows) == 2
    found = [[tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+)", row)] for row in rows]
    for least, most, settings in told:
        extremes = [(min(session), max(session)) for session in found if len(session) == 3]
        assert ((int(least), int(settings)), (int(most), int(settings))) in extremes
    block = text.partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    assert re.search(r"\(results/demo_[\w.-]+\.jsonl\)", block)
    block = text.partition("<!-- tta:begin -->")[2].partition("<!-- tta:end -->")[0]
    assert re.search(r"\(results/accuracy_[\w.-]+\.jsonl\)", block)


def test_the_changelog_has_the_version_or_says_that_it_comes():
    from gradwire import __version__

    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
