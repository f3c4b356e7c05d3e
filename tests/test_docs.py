"""Pages cannot drift: generated ones are up to date, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/cli.md",
    "docs/codecs.md",
    "docs/encode.md",
    "docs/lab.md",
    "docs/network.md",
    "docs/prediction.md",
    "docs/utility.md",
    "results/README.md",
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


def render():
    spec = importlib.util.spec_from_file_location("render", ROOT / "docs" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date():
    for path, text in render().pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date; run: make docs"


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


def test_python_snippets_of_the_readme_run(tmp_path):
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 4
    code = PRELUDE + "\n".join(snippets) + "\ndist.destroy_process_group()\n"
    # A process of its own: a snippet registers a codec, which the conformance suite must not meet.
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([256, 128]) 4608 bytes sent by each worker" in done.stdout
    assert "tensor([1., 1., 1.])" in done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists(), target


def test_the_readme_is_short_and_its_numbers_have_a_record():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200
    network = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    wins = re.findall(r"\d+ of \d+(?= settings|;)", text)
    assert len(wins) == 2
    assert all(f"**{w}** beat FP16 DDP" in network for w in wins)
    block = text.partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    assert re.search(r"\(results/demo_[\w.-]+\.jsonl\)", block)


def test_the_changelog_has_the_version_or_says_that_it_comes():
    from gradwire import __version__

    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
