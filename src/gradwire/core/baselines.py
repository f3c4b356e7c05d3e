"""What codecs are measured against: the one home of these names. No torch."""

from __future__ import annotations

# as step records call them
NOTHING = "no exchange"  # every rank for itself
PLAIN = "fp32 DDP"  # DDP as it comes
HALF = "fp16 DDP"  # with torch's own FP16 hook
POWERSGD = "torch powerSGD"  # with torch's own PowerSGD hook
SHARDED_FP32 = "torch fp32"  # FSDP2 as it comes
SHARDED_BF16 = "torch bf16"  # with torch's own reduction in bf16
SHARDED_ONCE = "fp32 all-to-all"  # a reduce-scatter that sends each shard once; that of gloo is an all-reduce
HANDED, HANDED_COMPILED = "handed over", "handed over, compiled"  # arrays of JAX or TensorFlow to torch and back
COPIED = "copied"  # as many bytes, in torch
BASELINES = (NOTHING, PLAIN, HALF, POWERSGD)

# the codecs that send what DDP does by itself, or with torch's own hook
FP32, FP16, BF16 = "none", "fp16", "bf16"
DDP = (FP32, FP16, BF16)
CODEC_OF = {PLAIN: FP32, HALF: FP16}

# how predictions may let a codec's payloads travel
PREDICTED_STRATEGIES = ("auto", "all_gather", "all_reduce", "scatter_reduce_gather", "hierarchical", "parameter_server")

WIN = 1.05  # times as fast as a baseline, to be called a win
MAX_LOSS = 0.5  # points that a codec may lose against FP16 and still be recommended
PERCENT_A_POINT = 2.0  # of a perplexity, that count as much as a point
