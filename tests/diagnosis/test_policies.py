"""What policies of sharded models mean in which torch, and what is said of those that cost."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from gradwire.diagnosis.policies import costly_policies
from gradwire.integrations.fsdp_parts import Dtypes, dtypes

FULL, HALF = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("policy", "before", "since"),
    [
        (MixedPrecisionPolicy(), (FULL, FULL), (FULL, FULL)),
        (MixedPrecisionPolicy(param_dtype=HALF), (HALF, HALF), (HALF, FULL)),
        (MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=HALF), (HALF, HALF), (HALF, HALF)),
        (MixedPrecisionPolicy(param_dtype=HALF, reduce_dtype=FULL), (HALF, FULL), (HALF, FULL)),
        (MixedPrecisionPolicy(reduce_dtype=HALF), (FULL, HALF), (FULL, HALF)),
    ],
)
def test_without_a_reduce_dtype_torch_2_15_reduces_in_the_parameters_dtype(policy, before, since):
    assert dtypes(policy, FULL, follows_gradients=False) == before
    assert dtypes(policy, FULL, follows_gradients=True) == since


def test_only_what_is_reduced_in_more_bytes_than_it_was_computed_in_is_told():
    assert not list(costly_policies(Counter({Dtypes(FULL, FULL): 8, Dtypes(HALF, HALF): 8, Dtypes(FULL, HALF): 8})))
    (told,) = costly_policies({Dtypes(HALF, FULL): 2_500_000})
    assert told == (
        "gradients are computed in bfloat16 and reduced in float32, 10 MB where bfloat16 has 5 MB. If you did not ask "
        "for it (torch 2.15 and newer do it without a reduce_dtype), set MixedPrecisionPolicy("
        "param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16); or gradwire.attach(model, \"bf16(sum='float32')\"), "
        "which sends halves and adds them in float32"
    )
