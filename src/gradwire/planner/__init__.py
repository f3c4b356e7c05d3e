"""The planner: how long a step takes, with and without compression, before anybody has run it.

`predict`, `advise` and `whatif` are the three questions (`questions.py`). Nothing here imports torch, but for
`own_workloads.py`, which traces models and codecs that are not shipped.
"""

from gradwire.planner.questions import advise, predict, whatif

__all__ = ["advise", "predict", "whatif"]
