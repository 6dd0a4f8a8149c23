"""Queues of features, one for each class, and pixels drawn by chance: fixed shapes, and nothing for the host to say."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
"""Of SplitMix64, as signed numbers: shifts and multipliers."""


class Memory:
    """For each class the last `size` features that were pushed, each of length 1; the first in are the first out."""

    def __init__(self, classes: int, size: int, channels: int, device: torch.device) -> None:
        self.size = size
        self.features = torch.zeros(classes, size, channels, device=device)
        self.next = torch.zeros(classes, dtype=torch.int64, device=device)
        """Where the next feature goes."""
        self.filled = torch.zeros(classes, dtype=torch.int64, device=device)

    @torch.no_grad()
    def push(self, features: Float[Tensor, "classes k d"], count: Int64[Tensor, " classes"]) -> None:
        """The first `count` features of each class."""
        offset = torch.arange(features.shape[1], device=features.device)
        place = ((self.next[:, None] + offset) % self.size)[..., None].expand_as(features)
        new = (offset < count[:, None])[..., None]
        self.features.scatter_(1, place, torch.where(new, features, self.features.gather(1, place)))
        self.next.copy_((self.next + count) % self.size)
        self.filled.copy_((self.filled + count).clamp(max=self.size))

    def state_dict(self) -> dict[str, Any]:
        return {"features": self.features, "next": self.next, "filled": self.filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.state_dict().items():
            if tensor.shape != state[name].shape:
                raise ValueError(f"the memory is {tuple(tensor.shape)} and not {tuple(state[name].shape)}")
            tensor.copy_(state[name])  # where a captured step finds it


def hashed(numbers: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """Numbers of 63 bits that look drawn, the same on every device (SplitMix64).

    >>> hashed(torch.tensor([0, 1])).tolist()
    [8147104208329303767, 5225608189600411232]
    """
    mixed = numbers + GOLDEN
    for shift, factor in MIX:
        mixed = (mixed ^ _right(mixed, shift)) * factor
    return _right(mixed ^ _right(mixed, 31), 1)


def _right(numbers: Tensor, shift: int) -> Tensor:
    """Shifted to the right, zeros coming in from the left."""
    return (numbers >> shift) & ((1 << (64 - shift)) - 1)


def lots(seeds: Int64[Tensor, " b"], pixels: int) -> Int64[Tensor, "b pixels"]:
    """A number for each pixel of each view, however the batch is cut: who has the largest is drawn."""
    return hashed(hashed(seeds)[:, None] + torch.arange(pixels, device=seeds.device))


def drawn(
    lots: Int64[Tensor, " pixels"], offered: Bool[Tensor, "classes pixels"], count: int
) -> tuple[Int64[Tensor, "classes k"], Int64[Tensor, "classes k"]]:
    """At most `count` of the pixels that each class offers: their lots, -1 where there are no more, and places."""
    found = torch.where(offered, lots, -1).topk(min(count, lots.shape[0]), dim=1)
    return found.values, found.indices
