"""The TrainJob is what Kubeflow's own models take, and nothing in it is unknown to them."""

from __future__ import annotations

import pytest
from engine_jobs import REPOSITORY

models = pytest.importorskip("kubeflow_trainer_api.models")
yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.engines


def read():
    return yaml.safe_load((REPOSITORY / "examples/engines/kubeflow.yaml").read_text())


def test_kubeflow_knows_every_field():
    job = read()
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job  # what is unknown would be left out


@pytest.mark.parametrize("change", [{"numNodes": "two"}, {"args": "--steps=300"}, {"nodes": 2}])
def test_a_mistake_is_found(change):
    job = read()
    job["spec"]["trainer"] |= change
    try:
        taken = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    except ValueError:
        return  # refused
    assert taken != job


def test_the_command_is_the_example():
    trainer = read()["spec"]["trainer"]
    script, *options = trainer["args"]
    assert trainer["command"] == ["torchrun"]
    assert (REPOSITORY / script.removeprefix("/gradwire/")).is_file()
    parser = (REPOSITORY / "examples/train_ddp.py").read_text()
    assert all(f'"{option.partition("=")[0]}"' in parser for option in options)
