"""Bilinear resizing, corners on corners."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def resize(x: Float[Tensor, "b c _ _"], size: tuple[int, int]) -> Float[Tensor, "b c _ _"]:
    """Bilinear, corners on corners.

    Convolutions of stride 2 that pad both sides look at the pixels 0, s, 2s, ...: a side of k*s + 1 pixels (513, 769)
    has features exactly at both its ends, as `align_corners=True` takes them to be.

    What is learned through on a GPU is resized by two matrix products: torch's own adds gradients up by atomics there,
    slowly and in any order.
    """
    if x.device.type == "cuda" and torch.is_grad_enabled():
        return by_matrices(x, size)
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


def by_matrices(x: Float[Tensor, "b c _ _"], size: tuple[int, int]) -> Float[Tensor, "b c _ _"]:
    """The same as a matrix for the rows and one for the columns; in the memory order of `x`."""
    rows = matrix(x.shape[2], size[0], x.device, x.dtype)
    columns = matrix(x.shape[3], size[1], x.device, x.dtype)
    if not channels_last(x):
        return rows @ (x @ columns.T)
    wide = columns @ x.permute(0, 2, 3, 1)
    tall: Tensor = (rows @ wide.flatten(2)).unflatten(2, (size[1], -1))
    return tall.permute(0, 3, 1, 2)


def channels_last(x: Float[Tensor, "b c _ _"]) -> bool:
    """Whether the channels of a pixel stand together in memory, and not the pixels of a channel."""
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def matrix(inside: int, outside: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "outside inside"]:
    """Row i holds what each of `inside` pixels gives to pixel i of `outside`: 1 at its place, 0 a pixel away."""
    made = _matrix if torch.compiler.is_compiling() else _kept
    return made(inside, outside, device, dtype)


def _matrix(inside: int, outside: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    places = torch.arange(outside, device=device, dtype=torch.float64) * ((inside - 1) / max(outside - 1, 1))
    pixels = torch.arange(inside, device=device, dtype=torch.float64)
    return (1 - (places[:, None] - pixels).abs()).clamp(min=0).to(dtype)


@cache  # for good: a captured step reads it where it is
def _kept(inside: int, outside: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return _matrix(inside, outside, device, dtype)
