"""What codecs are measured against, as step records call it: the one home of these names. No torch."""

from __future__ import annotations

NOTHING = "no exchange"  # every rank for itself
PLAIN = "fp32 DDP"  # DDP as it comes
HALF = "fp16 DDP"  # with torch's own FP16 hook
POWERSGD = "torch powerSGD"  # with torch's own PowerSGD hook
BASELINES = (NOTHING, PLAIN, HALF, POWERSGD)
WIN = 1.05  # times as fast as a baseline, to be called a win
