"""Slurm with two nodes on this machine: a worker is killed, then a whole node's torchrun; the job goes on by itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from engine_jobs import EVERY, LIMIT, REPOSITORY, STEPS, arguments, ends_as, steps_saved, wait_for
from test_torchrun_nodes import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")
MISSING = [program for program in PROGRAMS if shutil.which(program) is None]
pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(5 * LIMIT),
    pytest.mark.skipif(
        bool(MISSING), reason=f"no {', '.join(MISSING)} here; as root: apt-get install slurmctld slurmd slurm-client"
    ),
]
# No passwords, and no daemon of their own for them: all listen on this machine, as one user.
CONFIGURATION = """
ClusterName=engines
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SwitchType=switch/none
KillWait=2
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/controller.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
NodeName=n1 NodeHostName=localhost NodeAddr=127.0.0.1 Port={first} CPUs=1
NodeName=n2 NodeHostName=localhost NodeAddr=127.0.0.1 Port={second} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


@pytest.fixture
def slurm(tmp_path, marked):
    """Ask the cluster something: a function of a command that returns what it says."""
    (tmp_path / "state").mkdir()
    configuration = tmp_path / "slurm.conf"
    ports = {name: free_port() for name in ("controller", "first", "second")}
    configuration.write_text(CONFIGURATION.format(folder=tmp_path, user=_user(), **ports))
    marked.environment["SLURM_CONF"] = str(configuration)
    marked.start(["slurmctld", "-D"], tmp_path / "controller.log")
    for node in ("n1", "n2"):
        marked.start(["slurmd", "-D", "-N", node], tmp_path / f"{node}.log")

    def ask(*command):
        done = subprocess.run(command, cwd=REPOSITORY, env=marked.environment, capture_output=True, text=True)
        return done.stdout

    wait_for(lambda: ask("sinfo", "--noheader", "--format=%D %t") == "2 idle\n", tmp_path / "controller.log")
    return ask


def _user():
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_worker_and_then_a_node_are_killed(tmp_path, undisturbed, marked, slurm):
    folder, log = tmp_path / "checkpoint", tmp_path / "job.log"
    log.touch()
    job = slurm("sbatch", "--parsable", f"--output={log}", "examples/engines/slurm.sh", *arguments(folder)).strip()
    assert job, (tmp_path / "controller.log").read_text()[-4000:]

    wait_for(lambda: steps_saved(folder), log)
    before = steps_saved(folder)
    marked.kill(lambda p: p.environment.get("RANK") == "1")  # torchrun starts the workers again
    # srun may hold back what they print, and one checkpoint may have been under way
    wait_for(lambda: steps_saved(folder) > before + EVERY, log)
    # and Slurm the job; a worker, of either rank, that outlives its torchrun might train to the end before that
    marked.kill_all(
        lambda p: p.environment.get("SLURM_NODEID") == "1" and ("bin/torchrun" in p.title or "RANK" in p.environment)
    )

    wait_for(lambda: slurm("squeue", "--noheader") == "", log)
    output = log.read_text()
    resumed = [line.rpartition("step_")[2] for line in output.splitlines() if line.startswith("continuing from")]
    assert len(resumed) == 2, output[-4000:]
    assert max(map(int, resumed)) < STEPS
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", job)
    assert "Restarts=1" in slurm("scontrol", "show", "job", job)
    assert ends_as(folder, undisturbed)
