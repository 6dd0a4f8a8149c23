"""The plan of a training step: everything that chance and the schedule decide in it, drawn on the host beforehand.

Plans are small arrays by name, such as "strong/factors". The step itself is then a function of tensors alone, which can
run on a device without a word from the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Plan = dict[str, NDArray[Any]]
Planned = Mapping[str, Tensor]
"""A plan that has been moved to the device."""

ALIGNMENT = 16
"""Bytes; no number is wider."""


def under(name: str, plan: Plan) -> Plan:
    """A plan as a part of a larger one.

    >>> under("psi", {"seeds": np.zeros(2)}).keys()
    dict_keys(['psi/seeds'])
    """
    return {f"{name}/{key}": value for key, value in plan.items()}


def part(plan: Planned, name: str) -> Planned:
    """What stands under a name, which it loses."""
    return {key[len(name) + 1 :]: value for key, value in plan.items() if key.startswith(f"{name}/")}


class _Place(NamedTuple):
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Layout:
    """Where each array of a plan stands in one row of bytes, so that a single copy moves them all."""

    def __init__(self, plan: Plan) -> None:
        self.places: dict[str, _Place] = {}
        self.size = 0
        for name, array in plan.items():
            self.places[name] = _Place(self.size, array.shape, array.dtype)
            self.size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.places == other.places

    __hash__ = None  # type: ignore[assignment]

    def pack(self, plan: Plan, pinned: bool = False) -> Tensor:
        """The bytes, on the host. Pinned memory is not reused before a copy from it has ended: torch sees to that."""
        packed = torch.empty(self.size, dtype=torch.uint8, pin_memory=pinned)
        row = packed.numpy()
        for name, (start, shape, dtype) in self.places.items():
            array = plan[name]
            row[start : start + array.nbytes].view(dtype).reshape(shape)[...] = array
        return packed

    def unpack(self, packed: Tensor) -> dict[str, Tensor]:
        """Views of the bytes, wherever they are."""
        return {
            name: packed[start : start + int(np.prod(shape)) * dtype.itemsize].view(_torch(dtype)).view(shape)
            for name, (start, shape, dtype) in self.places.items()
        }


def moved(plan: Plan, device: torch.device) -> dict[str, Tensor]:
    """The plan as tensors on a device, without waiting for it."""
    if device.type == "cpu":
        return {name: torch.tensor(array) for name, array in plan.items()}
    layout = Layout(plan)
    return layout.unpack(layout.pack(plan, device.type == "cuda").to(device, non_blocking=True))


def _torch(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
