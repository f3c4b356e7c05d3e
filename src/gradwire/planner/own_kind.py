"""What a model of your own is for: the kind of task, by its modules. Unlike the rest of the planner it needs torch."""

from __future__ import annotations

from torch import nn

from gradwire import models
from gradwire.planner import quality


def kind_of(model: str) -> str | None:
    """The kind of task of `module:factory`; None where its modules do not tell."""
    return guess(models.build(model))


def guess(module: nn.Module) -> str | None:
    """The kind of task that a model is for, by its modules; None where they do not tell.

    Convolutions over images and embeddings of words or things each say something, but not both together. Words come
    in sequences, with layers made for these, or are scored at the end.

    >>> guess(nn.Conv2d(3, 8, 3)), guess(nn.Embedding(9, 4)), guess(nn.Linear(4, 4))
    ('images', 'recommendation', None)
    >>> guess(nn.Sequential(nn.Embedding(9, 4), nn.TransformerEncoderLayer(4, 2)))
    'language'
    """
    found = list(module.modules())

    def has(*kinds: type[nn.Module]) -> bool:
        return any(isinstance(m, kinds) for m in found)

    images, things = has(nn.Conv2d), has(nn.Embedding, nn.EmbeddingBag)
    if images == things:
        return None
    if images:
        return quality.SEGMENTATION if has(nn.ConvTranspose2d, nn.Upsample) else quality.IMAGES
    tables = {m.num_embeddings for m in found if isinstance(m, nn.Embedding)}
    scored = any(isinstance(m, nn.Linear) and m.out_features in tables for m in found)
    words = scored or has(nn.LayerNorm, nn.RMSNorm, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
    return quality.LANGUAGE if words else quality.RECOMMENDATION
