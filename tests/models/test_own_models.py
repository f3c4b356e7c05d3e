"""Models that users bring: where they are looked for, and what they are fed with."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch import nn

from gradwire import models
from gradwire.core.errors import ConfigError
from gradwire.models import own
from gradwire.models.catalogue import Input

LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 8, "batch_first": True}
GUESSED = {
    "images of 32": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 900, 2)), Input((3, 32, 32))),
    "images of 224": (nn.Sequential(nn.Conv2d(1, 1, 8, 8), nn.Flatten(), nn.Linear(784, 2)), Input((1, 224, 224))),
    "tokens": (nn.Sequential(nn.Embedding(100, 8), nn.TransformerEncoderLayer(**LAYER)), Input((32,), below=100)),
    "rows": (nn.Sequential(nn.Linear(13, 4), nn.BatchNorm1d(4)), Input((13,))),
    "rows in sequences": (
        nn.Sequential(nn.Linear(13, 4), nn.Conv1d(32, 2, 1), nn.Flatten(), nn.Linear(8, 1)),
        Input((32, 13)),
    ),
    "vectors in sequences": (nn.TransformerEncoderLayer(**LAYER), Input((32, 8))),
    "recurrent": (nn.LSTM(5, 7, batch_first=True), Input((32, 5))),
}


@pytest.mark.parametrize("net, wanted", GUESSED.values(), ids=GUESSED)
def test_inputs_are_guessed_from_the_first_layer(net, wanted):
    assert own.guessed("net", net.to("meta")) == wanted


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "nets_of_mine.py").write_text(
        "import torch\n"
        "def rows():\n    return torch.nn.Linear(13, 4)\n"
        "def told():\n    net = rows()\n    net.example = lambda batch: (torch.ones(batch, 13),)\n    return net\n"
        "def asks():\n    net = rows()\n    net.example = lambda: ()\n    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield
    sys.modules.pop("nets_of_mine", None)


@pytest.mark.usefixtures("folder")
def test_a_module_is_found_in_the_working_directory_and_put_on_the_path_once():
    for _ in range(2):
        net = models.build("nets_of_mine:rows", device="cpu")
    [inputs] = models.example("nets_of_mine:rows", net, 3)
    assert net(inputs).shape == (3, 4)
    [again] = models.example("nets_of_mine:rows", net, 3)
    assert torch.equal(inputs, again)  # on every rank and in every run
    assert sys.path.count(os.getcwd()) == 1


@pytest.mark.usefixtures("folder")
def test_a_model_tells_its_inputs_and_else_a_remark_says_what_was_guessed():
    [inputs] = models.example("nets_of_mine:told", models.build("nets_of_mine:told"), 2, "meta")
    assert (inputs.shape, inputs.device.type) == ((2, 13), "meta")
    assert models.remark("nets_of_mine:told") is None
    assert models.remark("resnet20") is None
    assert models.remark("nets_of_mine:rows") == (
        "nets_of_mine:rows does not tell its inputs, so they are guessed; write this where it is made, with your "
        "sizes: model.example = lambda batch: (torch.randn(batch, 13),)"
    )


@pytest.mark.usefixtures("folder")
def test_an_example_that_takes_no_batch_is_refused():
    with pytest.raises(ConfigError) as caught:
        models.example("nets_of_mine:asks", models.build("nets_of_mine:asks"), 2)
    assert str(caught.value) == (
        "model 'nets_of_mine:asks': `example` must take the batch size and return the inputs (asks.<locals>.<lambda>() "
        "takes 0 positional arguments but 1 was given); add a line where it is made, such as: "
        "model.example = lambda batch: (torch.randn(batch, 3, 32, 32),)"
    )
