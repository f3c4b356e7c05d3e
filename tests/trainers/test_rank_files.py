"""A full disk and a file that was cut short: a sentence each, and what was saved before is still there."""

from __future__ import annotations

import os
import resource

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.trainers import rank_files


class Kept:
    """In the place of a handle."""

    def __init__(self, elements):
        self.elements, self.loaded = elements, None

    def state_dict(self):
        return {"workers": 1, "kept": torch.ones(self.elements)}

    def load_state_dict(self, state):
        self.loaded = state


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def small_files():
    """Files of this process cannot grow beyond a hundred thousand bytes: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_a_sentence_and_the_file_before_stays(alone, tmp_path, small_files):
    rank_files.save(Kept(1000), tmp_path)
    sentence = (
        rf"(?s)^gradwire: gradwire_rank0.pt could not be written to {tmp_path}, which has [\d,]+ bytes left \(.+\); "
        r"make room and save again\. What was saved there before is unchanged\.$"
    )
    with pytest.raises(OSError, match=sentence):
        rank_files.save(Kept(1_000_000), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["gradwire_rank0.pt"]
    kept = Kept(0)
    rank_files.load(kept, tmp_path)
    assert kept.loaded["kept"].numel() == 1000


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_that_was_cut_short_is_refused(alone, tmp_path, share):
    rank_files.save(Kept(1000), tmp_path)
    file = tmp_path / "gradwire_rank0.pt"
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(gradwire.StateMismatch) as caught:
        rank_files.load(Kept(0), tmp_path)
    told = str(caught.value)
    assert told.startswith(f"gradwire: {file} cannot be read (")
    assert told.endswith("): it was cut short, or is no saved state; resume from another checkpoint")
