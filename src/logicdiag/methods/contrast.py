"""U2PL's contrast between classes: which pixels take part, and the loss of their representations.

All shapes are fixed. What is drawn depends on a pixel's view alone and on no other, so a batch may be cut among
processes; they tell each other what they drew, and all keep the same queues.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from .config import U2PLConfig
from .memory import Memory, drawn, hashed
from .partition import Gather


@dataclass(frozen=True)
class Pixels:
    """Of some views, one after the other, what part each takes."""

    lots: Int64[Tensor, " pixels"]
    anchor: Int64[Tensor, " pixels"]
    """The class that it is an anchor of in the student's view, or -1."""
    positive: Int64[Tensor, " pixels"]
    """The class whose mean it is part of in the teacher's view, or -1."""
    negative: Bool[Tensor, "classes pixels"]
    """The classes that it is likely none of, in the teacher's view."""


def confident(
    leaf: Int64[Tensor, "b h w"], probs: Float[Tensor, "b classes h w"], least: float
) -> Int64[Tensor, "b h w"]:
    """The label where it is there and likely enough; -1 elsewhere."""
    likely = probs.gather(1, leaf.clamp(min=0)[:, None])[:, 0] > least
    return torch.where((leaf >= 0) & likely, leaf, -1)


def negatives(
    leaf: Int64[Tensor, "b h w"],
    unreliable: Bool[Tensor, "u h w"],
    probs: Float[Tensor, "n classes h w"],
    ranks: tuple[int, int],
) -> Bool[Tensor, "n classes h w"]:
    """Classes that a pixel is likely none of; of labelled views, by their label, and of unlabelled ones behind them."""
    low, high = ranks
    rank = probs.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    classes = torch.arange(probs.shape[1], device=probs.device).view(1, -1, 1, 1)
    labelled = (leaf >= 0)[:, None] & (leaf[:, None] != classes) & (rank[: len(leaf)] < low)
    others = rank[len(leaf) :]
    return torch.cat([labelled, unreliable[:, None] & (others >= low) & (others < high)])


def contrast(
    mine: Float[Tensor, "pixels d"],
    theirs: Float[Tensor, "pixels d"],
    pixels: Pixels,
    memory: Memory,
    config: U2PLConfig,
    gather: Gather,
) -> Float[Tensor, ""]:
    """The loss of the student's representations, this process's part of it; the queues take in the teacher's."""
    classes = torch.arange(len(memory.features), device=mine.device)[:, None]
    with torch.no_grad():
        remember(memory, theirs, pixels, config.anchors, gather)
        offered = pixels.positive == classes
        sums = gather(torch.cat([offered.to(theirs.dtype) @ theirs, offered.sum(1, keepdim=True)], 1)).sum(0)
        positive = F.normalize(sums[:, :-1] / sums[:, -1:].clamp(min=1), dim=1)
        lots, places = drawn(pixels.lots, pixels.anchor == classes, config.anchors)
        everybody = _joined(gather(lots))
        largest = everybody.topk(min(config.anchors, everybody.shape[1]), dim=1).values
        count = (largest >= 0).sum(1)
        usable = (count > 0) & (sums[:, -1] > 0) & (memory.filled > 0)
        taken = (lots >= largest[:, -1:].clamp(min=0)) & usable[:, None]
        numbers = torch.arange(1, config.negatives + 1, device=mine.device)
        choice = hashed(lots[..., None] + numbers) % memory.filled.clamp(min=1)[:, None, None]
    anchors = F.normalize(mine[places.flatten()], dim=1).view(*places.shape, -1)
    alike = (anchors * positive[:, None]).sum(-1, keepdim=True)
    unlike = (anchors @ memory.features.transpose(1, 2)).gather(2, choice)
    loss = -(torch.cat([alike, unlike], 2) / config.temperature).log_softmax(2)[..., 0]
    of_class = (loss * taken).sum(1) / count.clamp(min=1)
    return of_class.sum() / usable.sum().clamp(min=1)


def remember(memory: Memory, theirs: Tensor, pixels: Pixels, count: int, gather: Gather) -> None:
    """Push at most `count` negatives of each class, of all processes, those with the largest lots."""
    lots, places = drawn(pixels.lots, pixels.negative, min(count, memory.size))
    features = F.normalize(theirs[places.flatten()], dim=1).view(*places.shape, -1)
    all_lots, all_features = _joined(gather(lots)), _joined(gather(features))
    found = all_lots.topk(min(count, memory.size, all_lots.shape[1]), dim=1)
    index = found.indices[..., None].expand(-1, -1, features.shape[2])
    memory.push(all_features.gather(1, index), (found.values >= 0).sum(1))


def _joined(gathered: Tensor) -> Tensor:
    """(processes, classes, k, ...) -> (classes, processes x k, ...)."""
    return gathered.transpose(0, 1).flatten(1, 2)
