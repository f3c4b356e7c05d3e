"""The examples, run by ranks that are there already: loading a framework takes longer than these trainings."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
import warnings
from pathlib import Path
from unittest import mock

import torch.distributed as dist

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = re.compile(r"loss ([\d.]+), weights ([\d.]+), (\d+) bytes sent a step")


def trained(rank, script, *options):
    """Loss, sum of weights and bytes that an example prints in the end; nothing on other ranks than the first."""
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / script)
    example = importlib.util.module_from_spec(spec)
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [script, *options]),
        mock.patch.object(dist, "init_process_group"),  # there is one
        mock.patch.object(dist, "destroy_process_group"),
        contextlib.redirect_stdout(printed),
    ):
        spec.loader.exec_module(example)
        example.main()
    found = PRINTED.search(printed.getvalue())
    return None if found is None else (float(found[1]), float(found[2]), int(found[3]))
