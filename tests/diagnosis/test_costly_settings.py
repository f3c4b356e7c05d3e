"""Settings that cost are told, and those that do not are not."""

from __future__ import annotations

import pytest
from watched import watch

from gradwire.diagnosis.causes import account
from gradwire.diagnosis.settings import FLAGS, costly
from gradwire.diagnosis.surroundings import interfaces

EXPOSED = {"seconds": 0.3, "exposed": 0.202}
LOADING = {"seconds": 0.2, "data": 0.101}


def told(step=None, rate=None, local_ranks=1, **settings):
    watches = [watch(r, 2, [step or {}] * 5, settings, local_ranks=local_ranks) for r in range(2)]
    return costly(watches[0], account(watches), rate)


def test_a_plain_job_has_none():
    assert told() == []
    assert told(EXPOSED) == []


@pytest.mark.parametrize("name", FLAGS)
def test_flags_for_debugging(name):
    values, why = FLAGS[name]
    assert told(environment={name: values[0].lower()}) == [
        f"{name}={values[0].lower()} {why}: unset it when you are done with it"
    ]
    assert told(environment={name: "OFF"}) == []


def test_unused_parameters_are_looked_for_without_need():
    (sentence,) = told(find_unused_parameters=True)
    assert sentence.startswith("find_unused_parameters=True, and every parameter was used in every step: ")
    assert told(find_unused_parameters=True, unused_bytes=4) == []


def test_a_copy_of_large_gradients():
    (sentence,) = told(bucket_bytes=(30_000_000, 30_000_000))
    assert sentence == ("gradient_as_bucket_view=False keeps a second copy of 60 MB; True saves it, and a pass over it")
    assert told(bucket_bytes=(30_000_000, 30_000_000), gradient_as_bucket_view=True) == []


def test_one_huge_bucket_hides_nothing():
    huge = {"bucket_bytes": (400_000_000,), "bucket_cap_bytes": 1 << 30, "gradient_as_bucket_view": True}
    (sentence,) = told(EXPOSED, **huge)
    assert sentence.startswith("bucket_cap_mb=1024 leaves 1 bucket for 400 MB, so little of the exchange hides")
    assert told(**huge) == []  # nothing is exposed


def test_tiny_buckets_that_cost_little_are_told_all_the_same():
    (sentence,) = told(bucket_bytes=(4000,) * 100)
    assert sentence == "gradients go in 100 buckets of 4 kB: leave bucket_cap_mb at its default, 25"
    assert told(EXPOSED, bucket_bytes=(4000,) * 100) == []  # they are the cause then


def test_a_data_loader_only_where_data_costs():
    assert told(loader_workers=0) == []
    assert len(told(LOADING, loader_workers=0)) == 1
    assert told(LOADING, loader_workers=4, pin_memory=False) == []
    assert told(LOADING, loader_workers=4, pin_memory=False, device="cuda") == [
        "the data loader has pin_memory=False: copies to the GPU wait for pageable memory"
    ]


def test_too_few_threads_on_a_cpu():
    assert told(cores=16, local_ranks=2) == [
        "each rank computes on 1 thread, and there are 8 cores for it: OMP_NUM_THREADS=8 (torchrun sets 1)"
    ]
    assert told(EXPOSED, cores=16, local_ranks=2) == []  # computing is not what takes long
    assert told(cores=16, threads=8, local_ranks=2) == []
    assert told(cores=16, device="cuda", local_ranks=2) == []


def test_another_card_is_much_faster_than_what_was_seen():
    cards = {"eth0": 1e9, "ib0": 1e11}
    assert told(EXPOSED, rate=0.9e9, interfaces=cards) == [
        "about 900 Mbit/s was seen between hosts, and ib0 can do 100 Gbit/s: look whether it is used "
        "(GLOO_SOCKET_IFNAME is not set)"
    ]
    named = told(EXPOSED, rate=0.9e9, interfaces=cards, backend="nccl", environment={"NCCL_SOCKET_IFNAME": "eth0"})
    assert named[0].endswith("(NCCL_SOCKET_IFNAME=eth0)")
    assert told(EXPOSED, rate=8e10, interfaces=cards) == []
    assert told(EXPOSED, rate=0.9e9, interfaces=cards, local_ranks=2) == []  # nothing goes over a card


def test_autograds_anomaly_detection():
    assert told(anomaly_detection=True)[0].startswith("autograd's anomaly detection is on: ")


def test_cards_that_are_up_and_say_their_speed(tmp_path):
    for name, speed, state in (("eth0", "25000", "up"), ("eth1", "100000", "down"), ("lo", "", "unknown")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
        (tmp_path / name / "operstate").write_text(state + "\n")
    (tmp_path / "wlan0").mkdir()
    assert interfaces(tmp_path) == {"eth0": 25e9}
    assert interfaces(tmp_path / "nowhere") == {}
