"""What makes steps fast: compiled networks, and convolutions that are searched for and find memory in their order."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..methods.method import Method, Network
from .config import TrainConfig
from .distributed import World

WORTH = 40_000
"""Steps of a run from which on compiling pays: it takes about two minutes, and saves a few milliseconds a step."""

SEARCH = 5000
"""Steps of a run from which on cuDNN tries its convolutions out first: with many sizes that takes up to a minute."""


def wants_compiling(config: TrainConfig, here: World) -> bool:
    """Left open, one process on a GPU compiles for a run that is long enough."""
    if config.compile is not None:
        return config.compile
    return here.device.type == "cuda" and here.size == 1 and config.steps >= WORTH


def compile_problem(device: torch.device) -> str | None:
    """Why nothing can be compiled here, if so: found out by compiling something small."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's, about itself
            compiled(_small)(torch.ones(8, device=device))
    except Exception as error:  # no C compiler, no Triton, a folder that cannot be written: each has its own
        lines = [line for line in str(error).splitlines() if line and not line.endswith("raised:")]
        return lines[0] if lines else type(error).__name__
    return None


def compile_method(method: Method) -> None:
    """Compile its networks, when they are first called. They keep their parameters, and the names of these."""
    torch.compiler.reset()  # another run of this process may have used up torch's limits
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # the compiler looks there
    method.compile(compiled)


def compiled(network: Network) -> Network:
    """For inputs of one size; what the network draws is drawn as if it were not compiled."""
    wrapped: Network = torch.compile(network, dynamic=False, options={"fallback_random": True})
    return wrapped


def _small(x: Tensor) -> Tensor:
    return x.sin() + 1


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of malloc.h."""


def keep_memory(device: torch.device) -> bool:
    """On a CPU, have freed memory kept by this process, and say whether it will be.

    glibc takes every large tensor from the system and gives it back, and the system then clears its pages one by one:
    up to a quarter of a step's time, where views are large. Each step wants the memory of the last one again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if device.type == "cpu" and os.name == "posix" else None
    return mallopt is not None and mallopt(M_MMAP_MAX, 0) == 1 and mallopt(M_TRIM_THRESHOLD, -1) == 1


def in_order(model: nn.Module) -> None:
    """Weights in the order of memory that convolutions in half precision are fastest with; features then follow."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def searched(device: torch.device, search: bool = True) -> Iterator[None]:
    """Whether cuDNN tries its convolutions out for each new size: worth it for crops, which all have one size."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = search
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
