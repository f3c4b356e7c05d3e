"""The page's examples, in turn, by two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_examples_of_the_page_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, "dist.destroy_process_group()"]))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    done = subprocess.run(launch, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(line.split()[:2] for line in done.stdout.splitlines()) == [["0", "2"], ["1", "2"]]
