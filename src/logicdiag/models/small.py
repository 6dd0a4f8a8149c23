"""`small`: an encoder of our own that trains on a CPU."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class SmallEncoder(nn.Module):
    """Residual blocks of 3x3 convolutions with batch norm; about 0.3 M parameters.

    >>> import torch
    >>> [tuple(x.shape) for x in SmallEncoder(output_stride=16)(torch.zeros(1, 3, 65, 96))]
    [(1, 32, 17, 24), (1, 96, 5, 6)]
    """

    low_channels, high_channels = 32, 96

    def __init__(self, output_stride: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_norm(3, 24, stride=2), nn.ReLU(inplace=True))
        self.low = nn.Sequential(Residual(24, 32, stride=2), Residual(32, 32))
        deep = {"stride": 2} if output_stride == 16 else {"dilation": 2}
        self.high = nn.Sequential(Residual(32, 64, stride=2), Residual(64, 64), Residual(64, 96, **deep))

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> list[Float[Tensor, "b _ _ _"]]:
        low = self.low(self.stem(x))
        return [low, self.high(low)]


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_norm(inside, outside, stride=stride, dilation=dilation),
            nn.ReLU(inplace=True),
            *conv_norm(outside, outside, dilation=dilation),
        )
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inside, outside, kernel=1, stride=stride))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b _ _ _"]:
        out: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return out


def conv_norm(inside: int, outside: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size (but for its stride), and batch norm."""
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return [conv, nn.BatchNorm2d(outside)]
