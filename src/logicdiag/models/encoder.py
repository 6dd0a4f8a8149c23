"""Encoders: `small`, and any of timm's that has feature maps at stride 4 and at output stride 8 or 16."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import OptionError
from .small import SmallEncoder
from .torchvision_shim import import_timm

STRIDES = (8, 16)


class Encoder(nn.Module):
    """Images in [0, 1] -> (features at stride 4, features at the output stride).

    `body` turns images, normalised by its own `mean` and `std`, into a list of feature maps: number `low` is the one at
    stride 4, the last one that at the output stride. `rates` (told for output stride 16), `decoder_channels` and
    `separable` are what suits a decoder of it.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        body: nn.Module,
        low_channels: int,
        high_channels: int,
        output_stride: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        low: int = 0,
        rates: tuple[int, ...] = (6, 12, 18),
        decoder_channels: int = 256,
        separable: bool = False,
    ) -> None:
        super().__init__()
        self.name, self.body, self.low, self.output_stride = name, body, low, output_stride
        self.low_channels, self.high_channels = low_channels, high_channels
        self.rates = tuple(rate * 16 // output_stride for rate in rates)
        self.decoder_channels, self.separable = decoder_channels, separable
        # Part of the weights: others of the same encoder may have been trained on another normalisation.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, image: Float[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "b _ _ _"], Float[Tensor, "b _ _ _"]]:
        features = self.body((image - self.mean) / self.std)
        return features[self.low], features[-1]

    def normalise_by(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean.copy_(torch.tensor(mean).view(-1, 1, 1))
        self.std.copy_(torch.tensor(std).view(-1, 1, 1))


def build_encoder(name: str, output_stride: int = 16) -> Encoder:
    """The encoder of that name, with random weights."""
    if output_stride not in STRIDES:
        raise OptionError(f"model.output_stride is {output_stride!r}, expected 8 or 16")
    if name == "small":
        body = SmallEncoder(output_stride)
        # Rates for images of about 100 pixels, which 6, 12 and 18 would leave at every pixel but the middle ones.
        return Encoder(
            name,
            body,
            body.low_channels,
            body.high_channels,
            output_stride,
            mean=(0.5, 0.5, 0.5),
            std=(0.25, 0.25, 0.25),
            rates=(2, 4, 6),
            decoder_channels=64,
            separable=True,
        )
    return _timm_encoder(name, output_stride)


def named_in_timm(name: str) -> Any:
    """timm, which has a model of that name."""
    timm = import_timm()
    if not timm.is_model(name):
        near = _near(name, ["small", *timm.list_models()])
        raise OptionError(f"model.encoder is {name!r}, expected 'small' or a model of timm{near}")
    return timm


def _timm_encoder(name: str, output_stride: int) -> Encoder:
    timm = named_in_timm(name)
    try:
        body = timm.create_model(name, features_only=True, output_stride=output_stride)
    except Exception as error:  # timm's models refuse in many ways: AssertionError, TypeError, ...
        raise _unfit(name, output_stride, _own_strides(timm, name) or str(error) or "timm offers none of it") from None
    strides, channels = list(body.feature_info.reduction()), list(body.feature_info.channels())
    if 4 not in strides or strides[-1] != output_stride:
        raise _unfit(name, output_stride, _at(strides))
    low = len(strides) - 1 - strides[::-1].index(4)
    mean, std = normalisation(name, body.pretrained_cfg)
    return Encoder(
        name,
        body,
        channels[low],
        channels[-1],
        output_stride,
        mean,
        std,
        low=low,
        separable=any(isinstance(m, nn.Conv2d) and 1 < m.groups == m.in_channels for m in body.modules()),
    )


def normalisation(name: str, config: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the images that timm's weights of that name were trained on."""
    if "efficientnet_lite" in name:  # (x * 255 - 127) / 128, which timm's configuration rounds to 0.5
        return (127 / 255,) * 3, (128 / 255,) * 3
    return tuple(config["mean"]), tuple(config["std"])


def _own_strides(timm: Any, name: str) -> str:
    """Where the feature maps of a model are that takes no output stride, in words; nothing if it has none."""
    try:
        return _at(timm.create_model(name, features_only=True).feature_info.reduction())
    except Exception:  # as above
        return ""


def _at(strides: Sequence[int]) -> str:
    return f"its feature maps are at strides {', '.join(map(str, strides))}"


def _unfit(name: str, output_stride: int, reason: str) -> OptionError:
    reason = reason.splitlines()[0].rstrip(".")
    return OptionError(
        f"model.encoder is {name!r}, which has no feature maps at stride 4 and, last, at output stride {output_stride} "
        f"({reason}); small, resnet50, resnet101, xception65 and tf_efficientnet_lite0 have them"
    )


def _near(name: str, offered: list[str]) -> str:
    near = difflib.get_close_matches(str(name).casefold(), offered, n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
