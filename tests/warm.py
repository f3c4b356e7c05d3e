"""What the fork server of the tests does before it forks: a rank would spend seconds on it."""

from __future__ import annotations

import pytest  # noqa: F401
import torch
import torch._dynamo

import gradwire
import gradwire.integrations.ddp
import gradwire.laboratory.bench.launch

torch.set_num_threads(1)  # nothing may run beside a fork
gradwire.VirtualCluster(2, "efsignsgd", tensors="all").reduce({"w": [torch.ones(64, 64)] * 2})  # loads the compiler
