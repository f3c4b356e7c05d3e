"""Profiles: what is shipped, what is written and read again, and what is refused."""

from __future__ import annotations

import runpy
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.core.errors import ConfigError, UnknownName
from gradwire.planner.model import predict
from gradwire.planner.profile import SOURCES, Law, Profile, Times, latest, names, parse
from gradwire.planner.text import dump
from gradwire.planner.workload import shipped

ROOT = Path(__file__).parent.parent.parent


def test_the_wanted_profiles_are_shipped():
    assert {"v100-paper-simulated", "v100-paper-measured", "h200"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_shipped_profiles_are_whole(name):
    profile = Profile.load(name)
    assert profile.name == name
    assert set(profile.models) <= set(shipped().models())
    known = {c.partition("(")[0] for c in shipped().codecs()}
    assert {c.partition("(")[0] for c in profile.codecs} <= known
    for times in (t for entries in profile.models.values() for t in entries):
        assert times.source.partition(":")[0] in SOURCES


@pytest.mark.parametrize("name", names())
def test_written_and_read_again(name):
    once = parse(tomllib.loads(dump(Profile.load(name))))
    assert dump(once) == dump(Profile.load(name))


def test_the_h200_profiles_follow_from_their_records():
    """After new records: make profiles."""
    made = runpy.run_path(str(ROOT / "docs" / "profiles.py"))["profiles"]()
    for name, profile in made.items():
        kept = ROOT / "src" / "gradwire" / "planner" / "data" / f"{name}.toml"
        assert kept.read_text(encoding="utf-8") == dump(profile, None if name == "h200" else made["h200"])


def test_what_a_profile_does_not_say_is_that_of_the_one_it_is_like():
    own = replace(Profile.load("h200"), name="mine", models={})
    text = dump(own, like=Profile.load("h200"))
    assert len(text.splitlines()) < 10
    assert parse(tomllib.loads(text)) == replace(own, models=Profile.load("h200").models)
    faster = replace(own, inside=replace(own.inside, bits_per_second=1e9))
    assert parse(tomllib.loads(dump(faster, like=Profile.load("h200")))).inside.bits_per_second == 1e9
    with pytest.raises(ConfigError, match="profile mine: `like` must name a shipped profile, got 'h300'"):
        parse(tomllib.loads(text.replace('"h200"', '"h300"')))


def test_the_h200_knows_the_memory_of_what_was_measured_alone():
    """One record holds a model's peak, another only the largest so far: what is unknown stays unknown."""
    profile = Profile.load("h200")
    assert profile.times("bert-large", 4).memory_bytes > 3 * 4 * 335e6  # parameters, gradients, momentum
    assert profile.times("resnet50", 64).memory_bytes is None
    setup = {"gpus": 16, "bandwidth": "10gbit", "hardware": "h200", "codec": "topk"}
    assert predict(model="bert-large", batch=4, **setup).fits is True
    assert predict(model="resnet50", batch=64, **setup).fits is None


def test_batches_between_and_beyond():
    profile = Profile.load("h200")
    small, middle, large = (profile.times("resnet50", b).backward_seconds for b in (16, 48, 64))
    assert small < middle < large
    assert "batch 32 and 64" in profile.times("resnet50", 48).source
    times = Times(batch=4, forward_seconds=1.0, backward_seconds=2.0, optimizer_seconds=0.5, source="measured: x")
    one = parse(content() | {"models": {}})
    alone = Profile(**{**vars(one), "models": {"m": (times,)}})
    doubled = alone.times("m", 8)
    assert (doubled.forward_seconds, doubled.backward_seconds, doubled.optimizer_seconds) == (2.0, 4.0, 0.5)
    assert doubled.source == "inferred: in proportion to batch 4 (measured: x)"


def content():
    return tomllib.loads(dump(Profile.load("h200")))


def test_unknown_ones_say_what_there_is():
    with pytest.raises(UnknownName, match="no hardware profile 'h20', and no file of that name; did you mean h200"):
        Profile.load("h20")
    with pytest.raises(UnknownName, match=r"profile h200 has no times of 'unet'.*give --backward"):
        Profile.load("h200").times("unet", 4)
    with pytest.raises(ConfigError, match="`batch` must be a whole number of at least 1, got 0"):
        Profile.load("h200").times("resnet50", 0)


def test_this_machine_before_calibration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match=r"no hardware profile 'this-machine'.*gradwire calibrate makes it"):
        Profile.load("this-machine")


def test_a_profile_that_was_written_again_is_read_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        Path("this-machine.toml").write_text(dump(replace(Profile.load("h200"), name=name)))
        assert Profile.load("this-machine").name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "cannot be read"),
        ('name = "x"', "'network' is missing"),
        (dump(Profile.load("h200")).replace('source = "assumed: DDP', 'source = "guessed: DDP'), "must begin with"),
        (
            dump(Profile.load("h200")).replace("[inside]", "[network.kinds.broadcast]\nefficiency = 1.0\n[inside]"),
            "none of",
        ),
    ],
)
def test_broken_files(tmp_path, text, sentence):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        Profile.load(path)


def test_laws():
    device = Profile.load("h200").device
    law = Law(launches=3, passes=2)
    assert law.seconds(1e6, device) == pytest.approx(3 * device.launch_seconds + 8e6 / device.pass_bytes_per_second)


def test_costs_of_other_parameters_are_labelled():
    profile = Profile.load("h200")
    assert profile.cost("powersgd")[1].startswith("measured")
    assert profile.cost("powersgd(rank=2)")[1].startswith("inferred: as powersgd")
    assert profile.cost("nonsense") is None


def test_the_slowest_of_many():
    assert latest(1) == 0.0
    assert latest(2) == pytest.approx(0.564, abs=0.03)  # 1 / sqrt(pi)
    assert latest(8) == pytest.approx(1.4236, abs=0.02)
    assert latest(100) == pytest.approx(2.5076, abs=0.02)
