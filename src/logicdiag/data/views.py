"""Strong views and CutMix, in batches on the image's device; every draw is keyed by (seed, stream, step, slot)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .config import ViewConfig

LUMA = (0.299, 0.587, 0.114)
BLUR_SIGMA = (0.1, 2.0)
BLUR_RADIUS = 6  # three times the largest sigma
BOX_AREA = (0.02, 0.4)
BOX_RATIO = (0.3, 1 / 0.3)

Images = Float[Tensor, "b 3 h w"]
PerSample = Float[Tensor, "b"]


def draws(seed: int, stream: str, step: int, slots: Sequence[int]) -> list[np.random.Generator]:
    """One generator for each place of the global batch, the same on every rank, worker and device.

    >>> [round(float(g.random()), 3) for g in draws(0, "labeled", 5, (0, 1))]
    [0.479, 0.792]
    >>> round(float(draws(0, "labeled", 5, (1,))[0].random()), 3)
    0.792
    """
    return [np.random.default_rng(np.random.SeedSequence([seed, crc32(stream.encode()), step, slot])) for slot in slots]


@torch.no_grad()
def strong_view(
    image: Images, config: ViewConfig, *, seed: int, stream: str, step: int, slots: Sequence[int]
) -> Images:
    """Colour jitter, gray and blur of the weak view, as FixMatch and UniMatch use them; in [0, 1].

    Brightness, contrast, saturation and hue come in an order drawn for each sample. Give two strong views of one batch
    two streams.
    """
    recipes = [_Recipe(g, config) for g in draws(seed, f"{stream}.strong", step, slots)]
    out = image.clone()
    for turn in range(len(JITTER)):
        for name, operation in JITTER.items():
            _apply(out, operation, [r.factors.get(name) if r.order[turn] == name else None for r in recipes])
    _apply(out, grayed, [1.0 if r.gray else None for r in recipes])
    _apply(out, blurred, [r.sigma for r in recipes])
    return out


class _Recipe:
    """What happens to one sample. Every number is drawn whether used or not, so that one option leaves the others."""

    def __init__(self, g: np.random.Generator, config: ViewConfig) -> None:
        jitter, gray, blur = g.random(3)
        ranges = {name: getattr(config, name) for name in JITTER}
        drawn = {
            name: float(g.uniform(-r, r)) if name == "hue" else float(g.uniform(max(0.0, 1 - r), 1 + r))
            for name, r in ranges.items()
        }
        self.factors = {name: drawn[name] for name, r in ranges.items() if jitter < config.jitter and r > 0}
        self.order = [list(JITTER)[i] for i in g.permutation(len(JITTER))]
        self.gray = gray < config.gray
        sigma = float(g.uniform(*BLUR_SIGMA))
        self.sigma = sigma if blur < config.blur else None


def _apply(image: Images, operation: Callable[[Images, PerSample], Images], factors: list[float | None]) -> None:
    """Change those samples of `image` that have a factor."""
    chosen = [i for i, factor in enumerate(factors) if factor is not None]
    if not chosen:
        return
    factor = torch.tensor([f for f in factors if f is not None], dtype=image.dtype, device=image.device)
    if len(chosen) == len(image):
        image.copy_(operation(image, factor))
    else:
        where = torch.tensor(chosen, device=image.device)
        image[where] = operation(image[where], factor)


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


def grayed(image: Images, factor: PerSample) -> Images:
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


# ---- CutMix ------------------------------------------------------------------------------------------------------


def cutmix(
    seed: int,
    stream: str,
    step: int,
    slots: Sequence[int],
    size: tuple[int, int],
    probability: float,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "b h w"]:
    """Boxes as UniMatch draws them; True where a pixel comes from the partner.

    A box covers 2 to 40 % of the image, and its height to its width is 0.3 to 1 / 0.3 times that of the image.
    """
    height, width = size
    boxes = torch.zeros(len(slots), height, width, dtype=torch.bool)
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
        box[top : top + tall, left : left + wide] = True
    return boxes.to(device)


def partner(tensor: Tensor) -> Tensor:
    """The neighbour in the micro-batch: 0 and 1 change places, 2 and 3, ...; a last odd one keeps itself.

    >>> partner(torch.arange(5)).tolist()
    [1, 0, 3, 2, 4]
    """
    n = len(tensor)
    order = [i ^ 1 if i ^ 1 < n else i for i in range(n)]
    return tensor[torch.tensor(order, dtype=torch.int64, device=tensor.device)]
