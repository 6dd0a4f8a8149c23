"""The decoder of DeepLabV3+: atrous spatial pyramid pooling, then the low-level features."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from .resize import channels_last, resize

LOW_CHANNELS = 48


class Decoder(nn.Module):
    """Features at stride 4 and at the output stride -> features at stride 4.

    >>> decoder = Decoder(32, 96, 64, rates=(6, 12, 18))
    >>> tuple(decoder(torch.zeros(2, 32, 17, 25), torch.zeros(2, 96, 5, 7)).shape)
    (2, 64, 17, 25)
    """

    def __init__(
        self,
        low: int,
        high: int,
        channels: int = 256,
        rates: tuple[int, ...] = (6, 12, 18),
        separable: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.aspp = ASPP(high, channels, rates, separable, dropout)
        self.low = _layer(low, LOW_CHANNELS, kernel=1)
        self.fuse = nn.Sequential(
            _layer(channels + LOW_CHANNELS, channels, separable=separable),
            _layer(channels, channels, separable=separable),
            nn.Dropout2d(dropout) if dropout else nn.Identity(),
        )

    def forward(self, low: Float[Tensor, "b _ h w"], high: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _ h w"]:
        low = self.low(low)
        high = resize(self.aspp(high), (low.shape[-2], low.shape[-1]))
        out: Tensor = self.fuse(torch.cat([high, low], dim=1))
        return out


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: one 1x1 convolution, a dilated 3x3 one for each rate, and the image's mean."""

    def __init__(self, inside: int, channels: int, rates: tuple[int, ...], separable: bool, dropout: float) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _layer(inside, channels, kernel=1),
                *(_layer(inside, channels, dilation=rate, separable=separable) for rate in rates),
                ImagePooling(inside, channels),
            ]
        )
        self.project = nn.Sequential(
            _layer(len(self.branches) * channels, channels, kernel=1),
            nn.Dropout2d(dropout) if dropout else nn.Identity(),
        )

    def forward(self, x: Float[Tensor, "b _ h w"]) -> Float[Tensor, "b _ h w"]:
        out: Tensor = self.project(torch.cat([branch(x) for branch in self.branches], dim=1))
        return out


class ImagePooling(nn.Module):
    """The mean of the whole image, at every pixel.

    Batch norm sees one value per image and channel here. A single image has no variance, and torch refuses it;
    such a step uses the running statistics and leaves them alone.
    """

    def __init__(self, inside: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, channels, 1, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(channels)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Float[Tensor, "b _ h w"]) -> Float[Tensor, "b _ h w"]:
        mean = self.conv(x.mean((-2, -1), keepdim=True))
        norm = self.norm
        if isinstance(norm, nn.BatchNorm2d) and norm.training and len(mean) == 1:
            mean = F.batch_norm(mean, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        else:
            mean = norm(mean)
        out: Tensor = self.activation(mean).expand(-1, -1, x.shape[-2], x.shape[-1])
        return out.contiguous(memory_format=torch.channels_last) if channels_last(x) else out  # as its neighbours


def _layer(inside: int, outside: int, kernel: int = 3, dilation: int = 1, separable: bool = False) -> nn.Sequential:
    """A convolution, batch norm and ReLU; `separable`: a depthwise convolution, its batch norm and a 1x1 one."""
    padding = dilation * (kernel // 2)
    convs: list[nn.Module] = []
    if separable:
        convs += [
            nn.Conv2d(inside, inside, kernel, padding=padding, dilation=dilation, groups=inside, bias=False),
            nn.BatchNorm2d(inside),
        ]
        kernel, padding, dilation = 1, 0, 1
    convs.append(nn.Conv2d(inside, outside, kernel, padding=padding, dilation=dilation, bias=False))
    return nn.Sequential(*convs, nn.BatchNorm2d(outside), nn.ReLU(inplace=True))
