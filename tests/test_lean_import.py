"""`import gradwire` loads torch and nothing else of weight, and touches no accelerator."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    "jax",
    "keras",
    "tensorflow",
    "numba",
    "triton",
    "typer",
    "rich",
    "click",
    "matplotlib",
    "pandas",
    "tensorboard",
    "wandb",
    "hypothesis",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "ray",
]


def run(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    """Not even torch: that comes with the first name that needs it."""
    assert run(f"import sys, gradwire; print([m for m in ['torch', *{HEAVY!r}] if m in sys.modules])") == "[]"


def test_use_is_light():
    added = f"print([m for m in {HEAVY!r} if m in sys.modules and m not in before])"
    use = "import gradwire; gradwire.VirtualCluster(2, 'topk'); gradwire.attach"
    assert run(f"import sys, torch; before = set(sys.modules); {use}; {added}") == "[]"


@pytest.mark.parametrize("trainer, package", [("huggingface", "transformers"), ("lightning", "lightning")])
def test_a_trainer_that_is_not_installed_gets_a_sentence(trainer, package):
    without = f"import sys; sys.modules[{package!r}] = None; from gradwire.core.errors import MissingExtra\n"
    told = run(f"{without}try: import gradwire.trainers.{trainer}\nexcept MissingExtra as problem: print(problem)")
    assert told == f"gradwire.trainers.{trainer} needs {package}: pip install 'gradwire[trainers]'"


def test_import_touches_no_gpu_and_no_process_group():
    code = "import torch, gradwire, threading, torch.distributed as d; print(torch.cuda.is_initialized(), "
    assert run(code + "d.is_initialized(), threading.active_count())") == "False False 1"
