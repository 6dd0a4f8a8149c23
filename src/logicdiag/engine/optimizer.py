"""The optimiser, its schedule, and the scale that keeps half-precision gradients from vanishing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import ConfigError, choose
from ..models.segmenter import Segmenter
from ..plan import Plan, Planned
from .config import OptimizerConfig

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda groups, c, fused: torch.optim.SGD(
        groups, c.lr, c.momentum, weight_decay=c.weight_decay, fused=fused or None
    ),
    "adamw": lambda groups, c, fused: torch.optim.AdamW(
        groups, c.lr, weight_decay=c.weight_decay, fused=fused or None, capturable=fused
    ),
}
HOW = ("foreach", "fused", "capturable")
"""Settings of a group that say how a machine computes, and not what."""


class Optimizer:
    """One step: set the rate, unscale, clip, move. Gradients must already be those of all processes.

    On CUDA, but for fp16, a step is one fused call for each group, its rates are tensors, and the state is there from
    the beginning, so that a step can be captured.
    """

    def __init__(
        self,
        models: Sequence[Segmenter],
        config: OptimizerConfig,
        steps: int,
        precision: str,
        device: str,
        heads: Sequence[nn.Module] = (),
        starts: Sequence[int] = (0,),
    ) -> None:
        choose("optimizer.name", config.name, OPTIMIZERS)
        for key in ("lr", "clip"):
            if (value := getattr(config, key)) is not None and value <= 0:
                raise ConfigError(f"optimizer.{key} is {value}, expected a number above 0")
        for key in ("head_lr", "momentum", "weight_decay", "power", "warmup"):
            if (value := getattr(config, key)) < 0:
                raise ConfigError(f"optimizer.{key} is {value}, expected 0 or more")
        self.config, self.marks = config, (*starts, steps)
        """Where the schedule begins, and begins anew; and the end."""
        self.times = {"encoder": 1.0, "decoder": config.head_lr}
        found: dict[str, list[nn.Parameter]] = {name: [] for name in self.times}
        for model in models:
            for name, parameters in model.parameter_groups().items():
                found[name] += parameters
        for head in heads:
            found["decoder"] += head.parameters()
        self.parameters = [parameter for parameters in found.values() for parameter in parameters]
        # Not with a loss scale: torch's fused SGD moves its momentum also in steps that the scale has skipped.
        self.fused = device == "cuda" and precision != "fp16"
        groups = [{"params": found[name], "name": name} for name in found]
        self.inner = OPTIMIZERS[config.name](groups, config, self.fused)
        if self.fused and config.name == "sgd" and config.momentum:
            for parameter in self.parameters:  # from 0 the first step is the gradient, as torch has it
                self.inner.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def rate(self, step: int) -> float:
        """The encoder's learning rate at a step, counted from 0."""
        c, begun = self.config, max(0, bisect_right(self.marks[:-1], step) - 1)
        start, stop = self.marks[begun : begun + 2]
        rate: float = c.lr * (1 - (step - start) / (stop - start)) ** c.power
        return rate * min(1.0, (step - start + 1) / c.warmup) if c.warmup else rate

    def plan(self, step: int) -> Plan:
        """The learning rate of each group."""
        return {"rates": np.array(self.rates(step), np.float32)}

    def rates(self, step: int) -> list[float]:
        return [self.rate(step) * self.times[group["name"]] for group in self.inner.param_groups]

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, step: int, plan: Planned) -> None:
        rates = plan["rates"].unbind() if self.fused else self.rates(step)
        for group, rate in zip(self.inner.param_groups, rates, strict=True):
            group["lr"] = rate
        if self.config.clip is not None:
            self.scaler.unscale_(self.inner)
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
        self.scaler.step(self.inner)
        self.scaler.update()
        self.inner.zero_grad(set_to_none=True)

    @torch.no_grad()
    def restart(self) -> None:
        """Forget how it was moving. What it remembers stays where it is, for a captured step."""
        for values in self.inner.state.values():
            for value in values.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def state_dict(self) -> dict[str, object]:
        inner = self.inner.state_dict()
        for group in inner["param_groups"]:
            group["lr"] = self.config.lr  # that of a step follows from the step
        return {"inner": inner, "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Also of a run on another kind of device."""
        how = [{key: group[key] for key in HOW if key in group} for group in self.inner.param_groups]
        groups = [saved | mine for saved, mine in zip(state["inner"]["param_groups"], how, strict=True)]
        self.inner.load_state_dict({**state["inner"], "param_groups": groups})
        for parameter, values in self.inner.state.items():
            for name, value in values.items():
                if value.shape == parameter.shape and value.stride() != parameter.stride():
                    values[name] = torch.empty_like(parameter).copy_(value)
        self.scaler.load_state_dict(state["scaler"])
