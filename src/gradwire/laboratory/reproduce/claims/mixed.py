"""Time to accuracy as a mixture, and named so: the rounds that our stand-in needs over their rounds a second.

The two trainings of Beyond Throughput and Compression Ratios are out of reach here, so two of ours stand in for them
(`reproduce.throughput.STAND_IN`); their throughput is published.
"""

from __future__ import annotations

import math
from statistics import median

from gradwire.core.baselines import WIN
from gradwire.laboratory.reproduce.evidence import Evidence, Trained
from gradwire.laboratory.reproduce.throughput import BASELINES, SPECS, STAND_IN, Setting
from gradwire.planner.training import Run, time_to
from gradwire.planner.tta import default_targets

FP32, FP16 = BASELINES
MIXED = "our rounds over their rounds a second"


def found(evidence: Evidence, model: str) -> Trained | None:
    """The training that stands for one of theirs, if it has its baseline."""
    trained = evidence.task(STAND_IN[model], SPECS)
    return trained if trained is not None and trained.fp16 is not None else None


def target(trained: Trained) -> float:
    """The final quality of FP16, but for what counts as equal."""
    assert trained.fp16 is not None, "asked of trainings with a baseline only"
    return default_targets(trained.fp16, trained.unit)[0]


def rounds(trained: Trained, setting: Setting) -> float | None:
    """To that target, the median over seeds; infinite if most never meet it; None: not trained."""
    group = trained.find(setting.codec)
    if group is None:
        return None
    return median(needed_by(trained, run) for run in group.runs)


def needed_by(trained: Trained, run: Run) -> float:
    """Rounds of one run to the target, which is as much easier as its seed is unlucky; infinite: it never meets it."""
    reached = time_to(run.by_rounds(), trained.luck.on(target(trained), run.seed))
    return math.inf if reached is None else reached.rounds


def seconds(trained: Trained, setting: Setting, model: str) -> float | None:
    """Our rounds over their rounds a second."""
    needed = rounds(trained, setting)
    return None if needed is None else needed / setting.rounds_per_second[model]


def speed_up(trained: Trained, setting: Setting, model: str, over: Setting = FP16) -> float | None:
    """How many times as soon as a baseline; 0 if never."""
    ours, others = seconds(trained, setting, model), seconds(trained, over, model)
    if ours is None or others is None or others == math.inf:
        return None
    return others / ours


def noise(trained: Trained) -> float:
    """The largest share by which seeds differ in their rounds to the target; where none were repeated, 5 %."""
    ranges = []
    for group in trained.groups:
        needed = [n for run in group.runs if (n := needed_by(trained, run)) < math.inf]
        if len(needed) > 1:
            ranges.append((max(needed) - min(needed)) / median(needed))
    return max(ranges, default=WIN - 1)
