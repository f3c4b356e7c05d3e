"""Ranks whose work is done end well, though gloo's threads still hold tensors when they leave."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A thread that wants the interpreter asks again after the switch interval. Where that is long, it still waits when the
# rank ends: about a third of these ranks abort if nothing is done about it.
RANKS = """
import os, sys
import torch
import torch.distributed as dist
import {module}

torch.set_num_threads(1)
aborted = 0
for meeting in sys.argv[1:]:
    pids = []
    for rank in range(2):
        pids.append(os.fork())
        if not pids[-1]:
            sys.setswitchinterval(100)
            dist.init_process_group("gloo", store=dist.FileStore(meeting, 2), rank=rank, world_size=2)
            dist.all_reduce_coalesced([torch.ones(1) for _ in range(2000)])
            sys.exit()
    aborted += sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
print(aborted)
"""


@pytest.mark.dist
@pytest.mark.skipif(sys.platform != "linux", reason="threads are watched through /proc")
@pytest.mark.parametrize("module", ["gradwire.collectives.executor", "gradwire.diagnosis.rank"])
def test_no_rank_aborts_at_its_end(module, tmp_path):
    meetings = [str(tmp_path / f"meeting {i}") for i in range(8)]
    command = [sys.executable, "-W", "ignore", "-c", RANKS.format(module=module), *meetings]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
