"""U2PL's partition of unlabelled pixels by the entropy of their prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Gather = Callable[[Tensor], Tensor]
"""A tensor of every process, stacked in their order."""


def alone(tensor: Tensor) -> Tensor:
    """What `Gather` is where there is one process."""
    return tensor[None]


@dataclass(frozen=True)
class Partition:
    reliable: Bool[Tensor, "b h w"]
    unreliable: Bool[Tensor, "b h w"]
    """Neither holds in padding."""
    weight: Float[Tensor, ""]
    """Pixels for each reliable one, over all processes."""
    pixels: Tensor
    """That were parted, over all processes."""


@torch.no_grad()
def parted(
    entropy: Float[Tensor, "b h w"], valid: Bool[Tensor, "b h w"], share: Float[Tensor, ""], gather: Gather = alone
) -> Partition:
    """The `share` of least reliable pixels of all processes, and the rest.

    >>> entropy = torch.tensor([[[0.1, 0.7, 0.3, 0.9, 0.2]]])
    >>> found = parted(entropy, entropy < 0.9, torch.tensor(0.25))
    >>> found.reliable.int().tolist(), found.unreliable.int().tolist(), round(float(found.weight), 3)
    ([[[1, 0, 1, 0, 1]]], [[[0, 1, 0, 0, 0]]], 1.333)
    """
    together = gather(torch.where(valid, entropy, torch.inf)).flatten().sort().values
    pixels = together.isfinite().sum()
    last = ((1 - share.double()) * pixels).round().long().clamp(min=1) - 1
    threshold = together.gather(0, last[None])
    reliable = valid & (entropy <= threshold)
    kept = (together <= threshold).sum().clamp(min=1)
    return Partition(reliable, valid & ~reliable, (pixels / kept).float(), pixels)


def entropy(logits: Float[Tensor, "b classes h w"]) -> Float[Tensor, "b h w"]:
    """- sum_c p(c) log p(c)."""
    logs = logits.float().log_softmax(1)
    return -(logs.exp() * logs).sum(1)
