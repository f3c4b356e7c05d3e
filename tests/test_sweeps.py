"""What `make test` runs, and what it leaves to `make test-all`: no codec as it is by default, and nothing is lost."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import gradwire
from gradwire.core.codec import codecs
from sweeps import SUITES, is_sweep

ROOT = Path(__file__).parent.parent


def test_five_commands_run_all_tests():
    commands = [line for line in (ROOT / "Makefile").read_text().splitlines() if "/pytest" in line]
    assert [command.partition(" -m ")[2] for command in commands] == [
        '"not sweep and not trainers and not engines and not frameworks"',
        "sweep",
        "trainers",
        "engines -rs tests/engines",
        "frameworks tests/frameworks",
    ]
    continuous = (ROOT / ".ci" / "run").read_text()
    suites = ("make test\n", "make test-all\n", "test-engines:", "test-trainers:", "test-frameworks:")
    places = [continuous.index(suite) for suite in suites]
    assert places == sorted(places)


def test_torch_has_the_threads_that_the_environment_says():
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])  # 1 but for those who ask for more


def test_defaults_are_met_and_variants_are_sweeps():
    for file in SUITES:
        assert (ROOT / file).exists(), file
        for name in codecs.names():
            assert not is_sweep(file, {"codec": gradwire.codec(name), "strategy": "all_gather"})
            others = [v for v in map(gradwire.codec, codecs.cls(name).variants) if v != gradwire.codec(name)]
            assert all(is_sweep(file, {"codec": variant}) for variant in others)
