"""Ray Train on two raylets: a worker is killed, Ray starts all again, and training ends as if it had not been."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from engine_jobs import LIMIT, STEPS, arguments, ends_as, steps_saved, wait_for

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(5 * LIMIT),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray"),
]
CLUSTER = """
import pathlib, sys, time
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
cluster.add_node(**node)
pathlib.Path(sys.argv[1]).write_text(cluster.address + " ")
time.sleep(float(sys.argv[2]))
"""


def test_a_worker_is_killed(tmp_path, undisturbed, marked):
    folder, log, cluster_log, address = (tmp_path / name for name in ("checkpoint", "log", "cluster.log", "address"))
    marked.start([sys.executable, "-c", CLUSTER, address, 5 * LIMIT], cluster_log)
    wait_for(lambda: address.exists() and address.read_text().endswith(" "), cluster_log)

    command = [sys.executable, "examples/engines/ray_train.py", *arguments(folder)]
    job = marked.start(command, log, RAY_ADDRESS=address.read_text().strip())
    wait_for(lambda: steps_saved(folder) or job.poll() is not None, log)
    workers = [p for p in marked.processes() if p.title.startswith("ray::RayTrainWorker")]
    assert len(workers) == 2, log.read_text()[-4000:]
    marked.kill(lambda p: p.pid == workers[-1].pid)
    wait_for(lambda: job.poll() is not None, log)
    output = log.read_text()
    assert job.returncode == 0, output[-4000:]
    resumed = {line.rpartition("step_")[2] for line in output.splitlines() if "continuing from" in line}
    assert len(resumed) == 1, output[-4000:]
    assert int(resumed.pop()) < STEPS
    assert ends_as(folder, undisturbed)
