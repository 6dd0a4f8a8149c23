"""Whether a GPU computes gradients rightly: on a part of a GPU cuDNN was seen not to, and most runs diverged."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..errors import ConfigError
from .inference import PRECISIONS

WRONG = 0.02
"""A relative error that no rounding makes: in bfloat16 0.0017 on a whole H200, 0.33 or more on a fifth."""


def check_arithmetic(device: torch.device, precision: str) -> None:
    """Refuse a GPU whose weight gradients are wrong: a run on it would diverge, or quietly learn something else."""
    if device.type != "cuda":
        return
    error = gradient_error(device, PRECISIONS[precision] or torch.float32)
    if error < WRONG:  # NaN is not
        return
    part, cudnn = torch.cuda.get_device_properties(device), torch.backends.cudnn.version()
    raise ConfigError(
        f"train.device is {device}, but gradients of convolutions are wrong there (relative error {error:.2g}; "
        f"{part.name}, {part.multi_processor_count} multiprocessors, cuDNN {cudnn}); "
        "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE if it is set, or try another version of torch"
    )


def gradient_error(device: torch.device, dtype: torch.dtype) -> float:
    """Of the weights of a 1 x 1 convolution with channels last, against float64: the one that was seen to be wrong."""
    generator = torch.Generator().manual_seed(0)
    shapes = (8, 80, 14, 14), (8, 480, 14, 14), (480, 80, 1, 1)
    x, gradient, weight = (
        torch.randn(shape, generator=generator).to(device, dtype).contiguous(memory_format=torch.channels_last)
        for shape in shapes
    )
    weight.requires_grad_()
    F.conv2d(x, weight).backward(gradient)
    assert weight.grad is not None
    exact = torch.einsum("nohw,nihw->oi", gradient.double(), x.double())
    return float((weight.grad.flatten(1).double() - exact).norm() / exact.norm())
