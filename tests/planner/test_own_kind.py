"""What a model is for, by its modules."""

from __future__ import annotations

import pytest
from torch import nn

from gradwire import models, planner
from gradwire.planner import own_kind, quality


@pytest.mark.parametrize(
    "module, kind",
    [
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 2)), "images"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 3, 2)), "segmentation"),
        (nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 4)), "language"),
        (nn.Sequential(nn.Embedding(9, 4), nn.Embedding(7, 4), nn.Linear(8, 1)), "recommendation"),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.Embedding(9, 4)), None),
        (nn.Linear(4, 4), None),
    ],
    ids=str,
)
def test_the_kind_of_task_is_guessed_from_modules(module: nn.Module, kind: str | None) -> None:
    assert own_kind.guess(module) == kind


@pytest.mark.parametrize("name", models.names())
def test_models_of_the_catalogue_are_guessed_right(name: str) -> None:
    assert own_kind.guess(models.build(name)) == quality.kind_of(name)


def test_advice_on_a_model_of_your_own_is_for_its_kind(tmp_path, monkeypatch):
    source = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Embedding(900, 64), nn.LSTM(64, 64))\n"
    (tmp_path / "own_words.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert own_kind.kind_of("own_words:net") == quality.LANGUAGE
    asked = {"batch": 8, "gpus": 4, "bandwidth": "100mbit", "backward": 0.01}
    found = planner.advise(model="own_words:net", **asked)
    assert found.ranking
    assert all(quality.standing(r.codec, quality.LANGUAGE).kind == quality.SAFE for r in found.ranking)
    assert any("were tried on language" in remark for remark in found.remarks)
