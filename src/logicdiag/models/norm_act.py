"""Batch norm and its activation by kernels of our own, on a GPU: torch takes about ten launches for each layer."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.gpu import fuses

Model = TypeVar("Model", bound=nn.Module)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ACTS: dict[type[nn.Module], str] = {nn.Identity: "none", nn.ReLU: "relu", nn.ReLU6: "relu6"}
"""What the kernels can apply after it."""


def fuse_norms(model: Model) -> Model:
    """The model with its batch norms, and ReLUs that follow them, done by the kernels wherever those apply.

    Modules, parameters, buffers and their names stay the same.

    >>> model = fuse_norms(nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()))
    >>> [type(module).__name__ for module in model]
    ['Conv2d', 'FusedBatchNorm2d', 'AppliedReLU']
    """
    for module in model.modules():
        act = _act_of(module)
        if act is not None:
            norm = cast(FusedBatchNorm2d, module)
            norm.plain, norm.act_inside, norm.relu_after = type(module), act, False
            _turn(norm, FusedBatchNorm2d)
    times = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for sequence in [module for module in model.modules() if type(module) is nn.Sequential]:
        for before, after in pairwise(sequence):
            alone = times[id(before)] == times[id(after)] == 1  # else either may have another neighbour elsewhere
            if (
                alone
                and isinstance(before, FusedBatchNorm2d)
                and before.act_inside == "none"
                and type(after) is nn.ReLU
            ):
                before.relu_after = True
                _turn(after, AppliedReLU)
    return model


def restore_norms(model: Model) -> Model:
    """What it was before `fuse_norms`, for those who have to know their batch norms by their class."""
    for module in model.modules():
        if isinstance(module, FusedBatchNorm2d):
            _turn(module, module.plain)
        elif isinstance(module, AppliedReLU):
            _turn(module, nn.ReLU)
    return model


class FusedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm, and what follows it; where the kernels do not apply it does what it did before."""

    plain: type[nn.Module]
    """What it was, which may have an activation inside."""
    act_inside: str
    relu_after: bool
    """Whether the ReLU that follows is to be applied here."""

    def forward(self, x: Float[Tensor, "b c _ _"]) -> Float[Tensor, "b c _ _"]:
        if not torch.compiler.is_compiling() and self._applies(x):
            return self._fused(x)
        out: Tensor = self.plain.forward(self, x)
        return F.relu(out) if self.relu_after else out

    def _fused(self, x: Tensor) -> Tensor:
        from ..kernels import triton_norm

        act = "relu" if self.relu_after else self.act_inside
        mean, var, batches = (cast(Tensor, t) for t in (self.running_mean, self.running_var, self.num_batches_tracked))
        if self.training:
            momentum = cast(float, self.momentum)
            return triton_norm.batch_norm(x, self.weight, self.bias, (mean, var, batches), momentum, self.eps, act)
        return triton_norm.normalise(x, self.weight, self.bias, mean, var, self.eps, act)

    def _applies(self, x: Tensor) -> bool:
        used = (self.weight, self.bias, self.running_mean, self.running_var)
        if any(tensor is None or tensor.dtype != torch.float32 or tensor.device != x.device for tensor in used):
            return False
        return (
            fuses(x.device)
            and x.dim() == 4
            and x.shape[1] == self.num_features
            and x.is_contiguous(memory_format=torch.channels_last)
            and 0 < x.numel() < 1 << 30  # the kernels count to 1 << 31, also beyond the end
            and x.dtype in DTYPES
            and (self._trains(x) if self.training else not self._learns(x))
        )

    def _trains(self, x: Tensor) -> bool:
        """Whether there are statistics to follow; a single value has no variance, which is torch's to say."""
        return self.track_running_stats and self.momentum is not None and x.numel() > x.shape[1]

    def _learns(self, x: Tensor) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (x, self.weight, self.bias))


class AppliedReLU(nn.ReLU):
    """A ReLU that the batch norm before it has applied."""

    def forward(self, input: Tensor) -> Tensor:
        return input


def _turn(module: nn.Module, into: type[nn.Module]) -> None:
    """Its class is changed, and not the module replaced: others may hold it, or have put hooks on it."""
    module.__class__ = into


def _act_of(module: Any) -> str | None:
    """The activation inside a batch norm; None if it is none, or the kernels do not know its activation."""
    if type(module) is nn.BatchNorm2d:
        return "none"
    timm: Any = sys.modules.get("timm.layers")  # no batch norm is timm's where it has not been imported
    if timm is None or type(module) is not timm.BatchNormAct2d or type(module.drop) is not nn.Identity:
        return None
    return ACTS.get(type(module.act))
