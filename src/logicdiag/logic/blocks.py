"""Probabilities as the user has them -> blocks of rows as the kernels want them, and back. Also: are they
probabilities?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import torch
from torch import Tensor

from ..errors import ProbabilityError
from .hierarchy import Hierarchy


@dataclass(frozen=True)
class Block:
    """Some pixels: `lead` picks from the leading pixel dimensions, `span` from the rest, flattened."""

    lead: tuple[int, ...]
    span: slice

    def rows(self, nodes_first: Tensor) -> Tensor:
        """(n, *pixels) -> (n, P), without copying."""
        part = below(nodes_first, self.lead)
        return part.view(part.shape[0], part.shape[1:].numel())[:, self.span]

    def pixels(self, per_pixel: Tensor) -> Tensor:
        """(*pixels) -> (P,), without copying."""
        return per_pixel[self.lead].view(-1)[self.span]


def below(nodes_first: Tensor, lead: tuple[int, ...]) -> Tensor:
    """(n, *pixels) -> (n, *rest), at one place of the leading pixel dimensions."""
    for place in lead:
        nodes_first = nodes_first[:, place]
    return nodes_first


@cache
def keep_freed_memory() -> None:
    """Make the C library keep freed blocks for reuse, where it would hand each large one back to the system at once.

    glibc does so above a threshold that follows the largest block freed so far; touching fresh pages again for every
    intermediate result costs more than the arithmetic on it. Freeing one block, never touched, raises the threshold.
    """
    untouched = torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)
    del untouched


def blocks(tensors: Sequence[Tensor], size: int) -> Iterator[Block]:
    """Cover all pixels of some (n, *pixels) tensors by blocks of at most `size` that need no copy to become rows."""
    lead_dims = 0
    while tensors[0].numel() and not all(_flattens(below(t, (0,) * lead_dims)) for t in tensors):
        lead_dims += 1
    pixel_shape = tensors[0].shape[1:]
    inner = pixel_shape[lead_dims:].numel()
    for lead in product(*map(range, pixel_shape[:lead_dims])):
        for start in range(0, inner, size):
            yield Block(lead, slice(start, min(start + size, inner)))


def _flattens(part: Tensor) -> bool:
    """Whether the pixel dimensions merge into one without a copy."""
    sizes, strides = part.shape[1:], part.stride()[1:]
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(kept))


def check_shape(probs: Tensor, dim: int, hierarchy: Hierarchy, valid: Tensor | None) -> None:
    if not isinstance(probs, Tensor):
        raise ProbabilityError(f"probabilities are a {type(probs).__name__}, expected a torch.Tensor")
    if not probs.is_floating_point():
        raise ProbabilityError(f"probabilities are {probs.dtype}, expected float16, bfloat16, float32 or float64")
    shape = tuple(probs.shape)
    if not -len(shape) <= dim < len(shape):
        raise ProbabilityError(f"dim is {dim}, but the probabilities have shape {shape}")
    n = len(hierarchy)
    if shape[dim] != n:
        other = [d for d, size in enumerate(shape) if size == n]
        text = f" (dimension {other[0]} has {n}: pass dim={other[0]})" if other else ""
        raise ProbabilityError(
            f"the probabilities have {shape[dim]} channels in dimension {dim}, {hierarchy.title} has {n} concepts{text}"
        )
    if valid is not None:
        pixels = shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]
        if tuple(valid.shape) != pixels:
            raise ProbabilityError(f"valid has shape {tuple(valid.shape)}, expected {pixels}, one value per pixel")
        if valid.dtype != torch.bool:
            raise ProbabilityError(f"valid is {valid.dtype}, expected torch.bool")
        if valid.device != probs.device:
            raise ProbabilityError(f"valid is on {valid.device}, the probabilities are on {probs.device}")


def are_probabilities(rows: Tensor) -> bool:
    """Whether every value is in [0, 1]; a NaN is not."""
    if not rows.numel():
        return True
    low, high = torch.aminmax(rows)
    return bool((low >= 0) & (high <= 1))


def not_probabilities(probs: Tensor, dim: int, hierarchy: Hierarchy, valid: Tensor | None) -> ProbabilityError:
    """The error that says how many values are wrong, and where the first one is."""
    wrong = ~((probs >= 0) & (probs <= 1))
    if valid is not None:
        wrong &= valid.unsqueeze(dim)
    count = int(wrong.sum())
    first = tuple(wrong.nonzero()[0].tolist())
    concept = hierarchy.names[first[dim]]
    text = f"{count} value{'s are' if count > 1 else ' is'} not in [0, 1]; the first is {float(probs[first]):g}"
    advice = "" if torch.isfinite(probs[wrong]).logical_not().any() else " (are these logits? apply a sigmoid first)"
    return ProbabilityError(f"{text} at {list(first)}, concept {concept!r}{advice}")
