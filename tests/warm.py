"""What the fork server of the tests does before it forks: a rank would spend seconds on it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from unittest import mock

import pytest  # noqa: F401
import torch
import torch._dynamo

import gradwire
import gradwire.integrations.ddp
import gradwire.laboratory.bench.launch

torch.set_num_threads(1)  # nothing may run beside a fork
gradwire.VirtualCluster(2, "efsignsgd", tensors="all").reduce({"w": [torch.ones(64, 64)] * 2})  # loads the compiler
for module in os.environ.get("WARM_TOO", "").split():  # by tests/frameworks/conftest.py
    if importlib.util.find_spec(module):
        # TensorFlow would load Keras, which has one back end a process
        with warnings.catch_warnings(), mock.patch.dict(os.environ, TF_USE_LEGACY_KERAS="1"):
            warnings.simplefilter("ignore")
            importlib.import_module(module)
