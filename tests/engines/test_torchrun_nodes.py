"""Two torchruns, as on two nodes: a worker is killed, and the training ends as if it had not been."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from engine_jobs import LIMIT, STEPS, arguments, ends_as, steps_saved, wait_for

pytestmark = [pytest.mark.engines, pytest.mark.timeout(3 * LIMIT)]


def free_port():
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False).port


def test_a_worker_of_another_node_is_killed(tmp_path, undisturbed, marked):
    folder, log = tmp_path / "checkpoint", tmp_path / "log"
    place = {"HEAD": "localhost", "PORT": str(free_port())}
    command = ["sh", "examples/engines/torchrun.sh", *arguments(folder)]
    nodes = [marked.start(command, log, **place) for _ in range(2)]
    wait_for(lambda: steps_saved(folder), log)
    marked.kill(lambda p: p.environment.get("RANK") == "1")
    wait_for(lambda: all(node.poll() is not None for node in nodes), log)
    output = log.read_text()
    assert [node.returncode for node in nodes] == [0, 0], output[-4000:]
    assert output.count("continuing from") == 1
    assert f"step_{STEPS}" not in output.partition("continuing from")[2].splitlines()[0]
    assert ends_as(folder, undisturbed)
