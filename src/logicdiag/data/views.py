"""Strong views and CutMix, in batches on the image's device.

What happens to a view is drawn on the host beforehand, keyed by (seed, stream, step, slot), and is called its plan; the
view itself is then a function of tensors, of fixed shapes and without a word between host and device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Bool, Float, Int32
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.gpu import fuses
from .config import ViewConfig

LUMA = (0.299, 0.587, 0.114)
BLUR_SIGMA = (0.1, 2.0)
BLUR_RADIUS = 6  # three times the largest sigma
BOX_AREA = (0.02, 0.4)
BOX_RATIO = (0.3, 1 / 0.3)

Images = Float[Tensor, "b 3 h w"]
PerSample = Float[Tensor, "b"]
Plan = dict[str, NDArray[Any]]


def draws(seed: int, stream: str, step: int, slots: Sequence[int]) -> list[np.random.Generator]:
    """One generator for each place of the global batch, the same on every rank, worker and device.

    >>> [round(float(g.random()), 3) for g in draws(0, "labeled", 5, (0, 1))]
    [0.479, 0.792]
    >>> round(float(draws(0, "labeled", 5, (1,))[0].random()), 3)
    0.792
    """
    return [np.random.default_rng(np.random.SeedSequence([seed, crc32(stream.encode()), step, slot])) for slot in slots]


# ---- strong views ------------------------------------------------------------------------------------------------


def plan_strong(config: ViewConfig, *, seed: int, stream: str, step: int, slots: Sequence[int]) -> Plan:
    """What happens to each sample. Give two strong views of one batch two streams.

    `factors` of brightness, contrast, saturation and hue, which are 1, 1, 1 and 0 where nothing changes; the `order`
    they come in; whether it goes `gray`; and the `sigma` of the blur, 0 where there is none.
    """
    plan: Plan = {
        "factors": np.tile(np.array(IDENTITY, np.float32), (len(slots), 1)),
        "order": np.zeros((len(slots), len(JITTER)), np.int32),
        "gray": np.zeros(len(slots), np.bool_),
        "sigma": np.zeros(len(slots), np.float32),
    }
    ranges = {name: getattr(config, name) for name in JITTER}
    for i, g in enumerate(draws(seed, f"{stream}.strong", step, slots)):
        # Every number is drawn whether used or not, so that one option leaves the others.
        jitter, gray, blur = g.random(3)
        for k, (name, r) in enumerate(ranges.items()):
            factor = g.uniform(-r, r) if name == "hue" else g.uniform(max(0.0, 1 - r), 1 + r)
            if jitter < config.jitter and r > 0:
                plan["factors"][i, k] = factor
        plan["order"][i] = g.permutation(len(JITTER))
        plan["gray"][i] = gray < config.gray
        sigma = g.uniform(*BLUR_SIGMA)
        plan["sigma"][i] = sigma if blur < config.blur else 0
    return plan


@torch.no_grad()
def strong_view(image: Images, plan: Mapping[str, Tensor], boxes: Int32[Tensor, "b 4"] | None = None) -> Images:
    """Colour jitter, gray and blur of the weak view, as FixMatch and UniMatch use them; in [0, 1].

    With `boxes` the views are mixed, too: inside of its box, a view is its partner's.
    """
    if fuses(image.device):
        from ..kernels import triton_views

        return triton_views.strong_view(image, plan, boxes, BLUR_RADIUS)
    view = plain_strong_view(image, plan)
    return view if boxes is None else torch.where(in_boxes(boxes, view.shape[2:])[:, None], partner(view), view)


def plain_strong_view(image: Images, plan: Mapping[str, Tensor]) -> Images:
    """`strong_view` in PyTorch, for any device."""
    factors, order = plan["factors"].to(image.dtype), plan["order"]
    out = image
    for turn in range(len(JITTER)):
        for k, operation in enumerate(JITTER.values()):
            factor = factors[:, k]
            out = _where((order[:, turn] == k) & (factor != IDENTITY[k]), operation(out, factor), out)
    out = _where(plan["gray"], grayed(out), out)
    sigma = plan["sigma"].to(image.dtype)
    return _where(sigma > 0, blurred(out, torch.where(sigma > 0, sigma, 1)), out)


def _where(chosen: Bool[Tensor, " b"], changed: Images, image: Images) -> Images:
    return torch.where(chosen.view(-1, 1, 1, 1), changed, image)


# ---- the operations, one factor for each sample ------------------------------------------------------------------


def brightened(image: Images, factor: PerSample) -> Images:
    """0 is black, 1 the image."""
    return (image * factor.view(-1, 1, 1, 1)).clamp_(0, 1)


def contrasted(image: Images, factor: PerSample) -> Images:
    """0 is the mean gray of the image, 1 the image."""
    # One mean at a time: a reduction over a batch may add up in another order than one over a single sample.
    mean = torch.stack([gray.mean() for gray in luma(image)])
    return _blend(image, mean.view(-1, 1, 1, 1), factor)


def saturated(image: Images, factor: PerSample) -> Images:
    """0 is gray, 1 the image."""
    return _blend(image, luma(image), factor)


def grayed(image: Images) -> Images:
    return luma(image).expand_as(image)


def rotated_hue(image: Images, factor: PerSample) -> Images:
    """The hue of HSV turned by `factor` of the whole circle."""
    value, low = image.amax(1), image.amin(1)
    chroma = value - low
    red, green, blue = image.unbind(1)
    span = chroma.clamp_min(torch.finfo(image.dtype).tiny)
    sextant = torch.where(
        value == red,
        (green - blue) / span,
        torch.where(value == green, 2 + (blue - red) / span, 4 + (red - green) / span),
    )
    sextant = sextant + 6 * factor.view(-1, 1, 1)
    channels = []
    for start in (5, 3, 1):
        k = (sextant + start) % 6
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, 1).clamp_(0, 1)


def blurred(image: Images, factor: PerSample) -> Images:
    """A Gaussian of standard deviation `factor` pixels; the border is repeated outwards."""
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=image.device, dtype=image.dtype)
    weights = torch.exp(-0.5 * (offsets / factor[:, None]) ** 2)
    weights = weights / weights.sum(1, keepdim=True)
    for dim in (2, 3):
        size = image.shape[dim]
        # Slices of a padded copy, added one by one: the same bits whatever the batch, unlike a convolution.
        padded = image.index_select(
            dim, torch.arange(-BLUR_RADIUS, size + BLUR_RADIUS, device=image.device).clamp_(0, size - 1)
        )
        image = torch.zeros_like(image)
        for k in range(len(offsets)):
            image += padded.narrow(dim, k, size) * weights[:, k].view(-1, 1, 1, 1)
    return image.clamp_(0, 1)


def luma(image: Images) -> Float[Tensor, "b 1 h w"]:
    red, green, blue = image[:, :1], image[:, 1:2], image[:, 2:]
    return (LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue).clamp_(0, 1)


def _blend(image: Images, other: Tensor, factor: PerSample) -> Images:
    factor = factor.view(-1, 1, 1, 1)
    return (image * factor + other * (1 - factor)).clamp_(0, 1)


JITTER: dict[str, Callable[[Images, PerSample], Images]] = {
    "brightness": brightened,
    "contrast": contrasted,
    "saturation": saturated,
    "hue": rotated_hue,
}
IDENTITY = (1.0, 1.0, 1.0, 0.0)
"""The factors that change nothing."""


# ---- CutMix ------------------------------------------------------------------------------------------------------


def plan_cutmix(
    *, seed: int, stream: str, step: int, slots: Sequence[int], size: tuple[int, int], probability: float
) -> Plan:
    """`boxes` as UniMatch draws them: top, left, bottom and right of what comes from the partner; 0 where nothing does.

    A box covers 2 to 40 % of the image, and its height to its width is 0.3 to 1 / 0.3 times that of the image.
    """
    height, width = size
    boxes = np.zeros((len(slots), 4), np.int32)
    for box, g in zip(boxes, draws(seed, f"{stream}.cutmix", step, slots), strict=True):
        if g.random() >= probability:
            continue
        area = g.uniform(*BOX_AREA)
        while True:
            ratio = g.uniform(*BOX_RATIO)
            tall, wide = int(height * math.sqrt(area * ratio)), int(width * math.sqrt(area / ratio))
            top, left = int(g.integers(height)), int(g.integers(width))
            if top + tall <= height and left + wide <= width:
                break
        box[:] = top, left, top + tall, left + wide
    return {"boxes": boxes}


def in_boxes(boxes: Int32[Tensor, "b 4"], size: Sequence[int]) -> Bool[Tensor, "b h w"]:
    """True where a pixel comes from the partner.

    >>> in_boxes(torch.tensor([[0, 1, 1, 3]]), (2, 4)).int().tolist()
    [[[0, 1, 1, 0], [0, 0, 0, 0]]]
    """
    top, left, bottom, right = boxes[:, :, None].unbind(1)
    row, column = (torch.arange(n, device=boxes.device) for n in size)
    return ((row >= top) & (row < bottom))[:, :, None] & ((column >= left) & (column < right))[:, None, :]


def partner(tensor: Tensor) -> Tensor:
    """The neighbour in the micro-batch: 0 and 1 change places, 2 and 3, ...; a last odd one keeps itself.

    >>> partner(torch.arange(5)).tolist()
    [1, 0, 3, 2, 4]
    """
    pairs = len(tensor) // 2
    swapped = tensor[: 2 * pairs].unflatten(0, (pairs, 2)).flip(1).flatten(0, 1)
    return torch.cat([swapped, tensor[2 * pairs :]])
