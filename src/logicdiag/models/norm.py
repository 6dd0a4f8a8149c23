"""Batch norm whose statistics are those of all ranks together, as if one process had the whole batch."""

from __future__ import annotations

import sys
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from .norm_act import restore_norms
from .torchvision_shim import import_timm

Model = TypeVar("Model", bound=nn.Module)


def share_batch_norm(model: Model) -> Model:
    """The model with every batch norm reduced over the ranks; unchanged where there is only one.

    Parameters, buffers and their names stay the same. On CUDA this is torch's `SyncBatchNorm`, which has no CPU side.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return model
    model = restore_norms(model)
    if any(parameter.is_cuda for parameter in model.parameters()):
        # timm's batch norms hold an activation, of which torch's own conversion knows nothing.
        convert = import_timm().layers.convert_sync_batchnorm if "timm" in sys.modules else None
        return cast(Model, (convert or nn.SyncBatchNorm.convert_sync_batchnorm)(model))
    return cast(Model, _convert(model))


class SharedBatchNorm(_BatchNorm):
    """Batch norm over the images of all ranks, of which each may hold another number.

    Modules inside it are applied after it: timm's batch norms hold an activation.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Float[Tensor, "b c *size"]) -> Float[Tensor, "b c *size"]:
        statistics_of_batch = self.training or self.running_mean is None
        out = self._normalise(input) if statistics_of_batch else self._normalise_by_running(input)
        for after in self.children():
            out = after(out)
        return out

    def _normalise_by_running(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)

    def _normalise(self, x: Tensor) -> Tensor:
        """Two passes, mean first: a mean of squares less the squared mean loses the variance of features far from 0."""
        values = x if x.dtype == torch.float64 else x.float()
        over = [dim for dim in range(x.dim()) if dim != 1]
        shape = (-1, *(1 for _ in range(x.dim() - 2)))
        total = _reduce(torch.cat([values.sum(over), values.new_tensor([x.numel() / x.shape[1]])]))
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = values - mean.view(shape)
        var = _reduce(centred.square().sum(over)) / count
        if self.training and self.running_mean is not None:
            self._follow(mean.detach(), var.detach() * count / (count - 1).clamp(min=1))
        scale = (var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.view(shape)
        if self.bias is not None:
            out = out + self.bias.view(shape)
        return out.to(x.dtype)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        count = cast(Tensor, self.num_batches_tracked).add_(1)
        momentum = 1 / float(count) if self.momentum is None else self.momentum
        for running, now in ((self.running_mean, mean), (self.running_var, var)):
            cast(Tensor, running).lerp_(now.to(cast(Tensor, running).dtype), momentum)


class _AllReduce(torch.autograd.Function):
    """A sum over ranks. Every rank's loss depends on it, so its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad


def _reduce(x: Tensor) -> Tensor:
    return cast(Tensor, _AllReduce.apply(x))


def _convert(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm) and not isinstance(module, SharedBatchNorm):
        shared = SharedBatchNorm(module.num_features, module.eps, module.momentum, affine=False)
        for name, parameter in module.named_parameters(recurse=False):
            shared.register_parameter(name, parameter)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            shared.register_buffer(name, getattr(module, name))
        shared.affine, shared.track_running_stats = module.affine, module.track_running_stats
        shared.train(module.training)
        for name, child in module.named_children():
            shared.add_module(name, child)
        return shared
    for name, child in list(module.named_children()):
        setattr(module, name, _convert(child))
    return module
