"""How deep a pixel is sure, for GPUs: one read of the leaves' logits, whose softmax says how likely concepts are.

Each concept on the path to the pixel's leaf is as likely as the leaves under it together, which are an interval of
indices. All sums of one pixel are kept side by side and scaled together as greater logits come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import ROOT, leaf_intervals

BLOCK, WARPS = 128, 1


@dataclass(frozen=True)
class Paths:
    """`channels` of the leaves; for each leaf its path from the top (`nodes`, with the leaf again up to a power of
    two), and the leaves under each concept of it, from `first` to before `last`.
    """

    channels: Tensor
    nodes: Tensor
    first: Tensor
    last: Tensor

    @classmethod
    def of(cls, parents: Sequence[int], device: torch.device | str) -> Paths:
        """Of channels in depth-first order, by their parent channels."""
        first, last = leaf_intervals(parents)
        inner = set(parents)
        leaves = [channel for channel in range(len(parents)) if channel not in inner]
        paths = [_path(parents, leaf) for leaf in leaves]
        depth = triton.next_power_of_2(max(map(len, paths)))
        nodes = [path + path[-1:] * (depth - len(path)) for path in paths]
        tables = (
            leaves,
            nodes,
            [[first[node] for node in path] for path in nodes],
            [[last[node] for node in path] for path in nodes],
        )
        return cls(*(torch.tensor(table, dtype=torch.int32, device=device) for table in tables))


def _path(parents: Sequence[int], node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = parents[node]
    return path[::-1]


def deepest(paths: Paths, logits: Tensor, leaf: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Of `logits` (b, n, pixels), on the path to each pixel's `leaf` (b, pixels), the channel of the last concept that
    is at least so likely, as int16; and 1.0 where there is such a concept, else 0.0 (and the topmost).
    """
    b, _, pixels = logits.shape
    leaf = leaf.contiguous()
    sure = torch.empty(b, pixels, dtype=torch.int16, device=logits.device)
    some = torch.empty(b, pixels, dtype=torch.float32, device=logits.device)
    if sure.numel():
        _deepest[(triton.cdiv(pixels, BLOCK), b)](
            logits,
            leaf,
            paths.channels,
            paths.nodes,
            paths.first,
            paths.last,
            sure,
            some,
            len(paths.channels),
            pixels,
            *logits.stride(),
            float(least),
            DEPTH=paths.nodes.shape[1],
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return sure, some


@triton.jit
def _deepest(
    logits,
    leaves,
    channels,
    nodes,
    first,
    last,
    out_sure,
    out_some,
    count,
    pixels,
    image_step,
    channel_step,
    pixel_step,
    least,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    at = image * pixels + pixel
    here = logits + image * image_step + pixel.to(tl.int64) * pixel_step
    leaf = tl.load(leaves + at, mask=inside, other=0).to(tl.int32)
    level = tl.arange(0, DEPTH)[:, None]
    place = tl.maximum(leaf, 0)[None, :] * DEPTH + level
    low = tl.load(first + place)
    high = tl.load(last + place)
    most = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sums = tl.zeros([DEPTH, BLOCK], tl.float32)
    k = tl.program_id(0) * 0
    for _ in range(count):
        channel = tl.load(channels + k).to(tl.int64)
        z = tl.load(here + channel * channel_step, mask=inside, other=0.0).to(tl.float32)
        smaller = tl.exp(-tl.abs(z - most))
        scale = tl.where(z > most, smaller, 1.0)
        mine = tl.where(z > most, 1.0, smaller)
        most = tl.maximum(most, z)
        total = total * scale + mine
        under = (low <= k) & (k < high)
        sums = sums * scale[None, :] + tl.where(under, mine[None, :], 0.0)
        k += 1
    likely = sums >= least * total[None, :]
    depth = tl.max(tl.where(likely, level, -1), 0)
    taken = level == tl.maximum(depth, 0)[None, :]
    sure = tl.sum(tl.where(taken, tl.load(nodes + place), 0), 0)
    tl.store(out_sure + at, sure.to(tl.int16), mask=inside)
    tl.store(out_some + at, (depth >= 0).to(tl.float32), mask=inside)
