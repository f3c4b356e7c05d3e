"""Runs an example once for each codec: to load a trainer takes longer than to train so little.

torchrun --nproc-per-node 2 tests/trainers/each_codec.py EXAMPLE 'topk|none' OPTION …    # {} in an option is its number
"""

from __future__ import annotations

import runpy
import sys

script, codecs, *options = sys.argv[1:]
for number, codec in enumerate(codecs.split("|")):
    sys.argv = [script, "--codec", codec, *(option.replace("{}", str(number)) for option in options)]
    runpy.run_path(script, run_name="__main__")
