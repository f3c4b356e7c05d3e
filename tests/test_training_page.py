"""The page on training: its blocks run, in order, and say what the page says."""

from __future__ import annotations

import json
import subprocess
import sys

from gradwire.core.records import load
from test_docs import PRELUDE, snippets


def test_its_blocks_run(tmp_path):
    blocks = snippets("docs/api/training.md")
    assert len(blocks) == 3
    steps = [PRELUDE, *blocks, "handle.detach()", "dist.destroy_process_group()"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(steps)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "gradwire step 10: eightbit sends nothing; a step takes " in done.stderr  # one rank
    assert "dry run: powersgd" in done.stdout
    assert "bytes of memory on each rank" in done.stdout
    assert [r.outcome["step"] for r in load(tmp_path / "run.jsonl")] == [10, 20]
    assert list((tmp_path / "runs" / "eightbit").iterdir())
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])["what"]["model"] == "mymodel:transformer"
