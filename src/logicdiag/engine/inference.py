"""From an image of any size to logits of that size: whole, by its short side, or in sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..errors import ConfigError, OptionError, choose
from .distributed import choose_device

MODES = {
    "whole": "the image as it is",
    "short_side": "resized until its short side is `size`; the logits are resized back",
    "slide": "in windows of `size`, `stride` apart; where they overlap, logits are averaged",
}
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
SMALLEST = 32
"""The smallest side a model takes; smaller images are continued by their border, and the logits cut back."""

Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class InferenceConfig:
    """`size` is the short side or the window; `stride` is of the window, and two thirds of it by default."""

    mode: str = "whole"
    size: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        try:
            choose("inference.mode", self.mode, MODES)
        except OptionError as error:
            raise ConfigError(str(error)) from None
        if self.mode == "whole":
            for key, value in (("size", self.size), ("stride", self.stride)):
                if value is not None:
                    raise ConfigError(f"inference.{key} is {value}, but inference.mode is whole and takes none")
        elif self.size is None or self.size < SMALLEST:
            size = "null" if self.size is None else self.size
            raise ConfigError(f"inference.size is {size}, expected at least {SMALLEST} for mode {self.mode}")
        if self.stride is not None and self.mode == "short_side":
            raise ConfigError(f"inference.stride is {self.stride}, but inference.mode is short_side and takes none")
        if self.stride is not None and self.size is not None and not 1 <= self.stride <= self.size:
            raise ConfigError(f"inference.stride is {self.stride}, expected 1 to {self.size}, the size of the window")


@torch.no_grad()
def predict_logits(
    model: Logits,
    image: Float[Tensor, "b 3 h w"],
    config: InferenceConfig | None = None,
    precision: str = "fp32",
) -> Float[Tensor, "b channel h w"]:
    """Logits in float32, at the size of `image`, which is in [0, 1]; the model runs in `precision`."""
    config = config or InferenceConfig()
    height, width = image.shape[-2:]
    with autocast(image.device, precision):
        if config.mode == "short_side":
            assert config.size is not None  # checked by the config
            scale = config.size / min(height, width)
            size = (max(config.size, round(height * scale)), max(config.size, round(width * scale)))
            return _resize(_at_least_smallest(model, _resize(image, size)), (height, width))
        if config.mode == "slide":
            assert config.size is not None  # checked by the config
            return _slide(model, image, config.size, config.stride or max(1, config.size * 2 // 3))
        return _at_least_smallest(model, image)


def autocast(device: torch.device | str, precision: str) -> AbstractContextManager[object]:
    """The context in which a model computes in `precision`: fp32, bf16 or fp16."""
    dtype = PRECISIONS[choose("precision", precision, PRECISIONS)]
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype)


def where_to_run(device: torch.device | str | None, precision: str | None, trained_in: str) -> tuple[torch.device, str]:
    """A GPU if there is one, and the precision of the training there; fp32 elsewhere, where half is no faster."""
    device = choose_device("auto" if device is None else str(device), option="device")
    return device, precision or (trained_in if device.type == "cuda" else "fp32")


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin so that they cover `length`; the last is moved back to end with it.

    >>> starts(10, 4, 3), starts(11, 4, 3), starts(4, 4, 3), starts(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0], [0])
    """
    last = max(0, length - window)
    return [*range(0, last, stride), last]


def _slide(model: Logits, image: Tensor, size: int, stride: int) -> Tensor:
    height, width = image.shape[-2:]
    total: Tensor | None = None
    count = image.new_zeros(height, width)
    for top in starts(height, size, stride):
        for left in starts(width, size, stride):
            window = (..., slice(top, top + size), slice(left, left + size))  # a smaller image is its own window
            logits = _at_least_smallest(model, image[window])
            if total is None:
                total = logits.new_zeros(*logits.shape[:2], height, width)
            total[window] += logits
            count[window] += 1
    assert total is not None  # there is always one window
    return total / count


def _at_least_smallest(model: Logits, image: Tensor) -> Tensor:
    height, width = image.shape[-2:]
    below, beside = max(0, SMALLEST - height), max(0, SMALLEST - width)
    if below or beside:
        image = F.pad(image, (0, beside, 0, below), mode="replicate")
    return model(image)[..., :height, :width].float()


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    if image.shape[-2:] == size:
        return image
    return F.interpolate(image, size, mode="bilinear", align_corners=False, antialias=True)
