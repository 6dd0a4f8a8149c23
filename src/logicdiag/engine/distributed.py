"""Several processes as one: started by `torchrun`, or just this one. Gradients, counts and rules are shared here.

A step's batch is cut among the processes. Every loss is a sum over pixels divided by the pixels of the whole step, so
adding gradients up over processes gives the gradient of the whole; batch-norm statistics are those of the whole batch
(`models.share_batch_norm`), and truth degrees are reduced before they are used.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import ConfigError

Thing = TypeVar("Thing")


class World:
    """This process among all of them."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | str = "cpu") -> None:
        self.rank, self.size, self.device = rank, size, torch.device(device)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Summed over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def most(self, tensor: Tensor) -> Tensor:
        """The greatest of all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        """Those of all processes, of one shape, stacked in their order."""
        if self.size == 1:
            return tensor[None]
        together = tensor.new_empty(self.size, *tensor.shape)
        dist.all_gather(list(together.unbind()), tensor.contiguous())
        return together

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Summed over all processes, in one message per type of number."""
        if self.size == 1:
            return
        found: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)  # one process may have used what another did not
            found.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in found.values():
            together = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self.add(together)
            parts = together.split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def same(self, model: nn.Module) -> None:
        """Every process starts with the weights of the first."""
        if self.size > 1:
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.detach(), 0)

    def from_first(self, thing: Thing) -> Thing:
        """What the first process has; every process must call this with one of its own."""
        if self.size == 1:
            return thing
        box = [thing]
        dist.broadcast_object_list(box, 0)
        return box[0]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def finish(self) -> None:
        """Wait until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def any(self, flag: bool) -> bool:
        """Whether it holds in some process."""
        if self.size == 1:
            return flag
        return bool(self.add(torch.tensor(float(flag), device=self.device)) > 0)


def is_first() -> bool:
    """Whether this process speaks for all that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the processes that `torchrun` started (or be alone), on a device each; leave at the end."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = choose_device(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size == 1:
        yield World(0, 1, chosen)
        return
    # Its functions have the group as a default. Imported later (optimisers do), they would keep it, and its threads,
    # alive until Python ends, where a thread that still lets go of a tensor ends the process with an error.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def choose_device(name: str, local: int = 0, option: str = "train.device") -> torch.device:
    """`auto` is a GPU if there is one; several processes of one machine take one each."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{option} is {name!r}, expected auto, cpu, cuda, cuda:1 or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"{option} is {name!r}, expected auto, cpu, cuda, cuda:1 or mps")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = local if device.index is None else device.index
        if index >= count:
            raise ConfigError(f"{option} is {name}, but this machine has {count} CUDA devices that PyTorch can use")
        return torch.device("cuda", index)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"{option} is mps, but PyTorch finds no such device here; try auto or cpu")
    return device
